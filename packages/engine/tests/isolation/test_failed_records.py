"""Records that fail alone drop what they have under way (``on_error="column"``)."""

from __future__ import annotations

import pytest

from forebay_state_api.job.descriptors import ReducingStateDescriptor
from forebay_testing.backends.failing import UNLIMITED
from forebay_testing.backends.subject import ENGINES, Recorded
from forebay_testing.late_reads import late_backend

from ..execution.program_rows import STATES, open_states
from ..subjects import OnBoth


class TestFailedRecords(OnBoth):
    @pytest.fixture(params=["in memory", "late"])
    def isolating(self, request, new_job, backend_class):
        """A job whose records fail alone, with state of every kind under ``k``."""
        job = new_job(*STATES, settings=ENGINES["tight"], error_rows=UNLIMITED)
        if request.param == "late":
            job.backend_class = late_backend(backend_class, seed=1)
        job.do("k", ("v.update", 5), ("l.update", [1, 2]), ("m.put", 1, 1), ("r.add", 7))
        job.restart()
        return job

    def test_what_a_failed_record_has_under_way_is_dropped(self, isolating):
        ended = []

        async def process(f, row, ctx):
            try:
                ctx.collect("early")
                await f.v.async_update(100)
                f.m.async_get(1).then_accept(lambda _: f.v.async_update(200))
                if row[1]:
                    f.r.async_add(1)
                    f.l.async_get().then_accept(lambda _: 1 / 0)
                await f.m.async_get(2)
                return ["late"]
            finally:
                ended.append(f.v.value())
                f.v.update(300)

        function = Recorded(open_states, process)
        (failed,) = isolating.run(function, [("k", True)])
        assert failed.type == "ZeroDivisionError"
        assert isolating.do("k", ("v.value",), ("r.get",)) == [5, 7]
        assert isolating.run(function, [("k", False), ("j", False)]) == ["early", "late"] * 2

    def test_an_error_of_a_reduce_function_fails_its_record_even_if_caught(self, new_job):
        def refuse(first, second):
            raise ValueError("not today")

        descriptor = ReducingStateDescriptor("x", refuse, int)

        def opened(f, context):
            f.x = context.get_reducing_state(descriptor)

        async def process(f, row, ctx):
            try:
                await f.x.async_add(row[1])
            except ValueError:
                return ["caught"]
            return ["added"]

        job = new_job(descriptor, settings=ENGINES["tight"], error_rows=UNLIMITED)
        rows = [("k", 1), ("k", 2), ("j", 3)]
        added, failed, other = job.run(Recorded(opened, process), rows)
        assert (added, failed.message, other) == ("added", "not today", "added")
        job.restart()
        assert job.peek(descriptor, "k") == 1
