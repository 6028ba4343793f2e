"""Functions that await more than state (docs/how-to/await-anything.md)."""

from __future__ import annotations

import asyncio
from collections import Counter

import attrs
import pytest

from forebay_engine.isolation.failed_record import ErrorRows, FailedRecord
from forebay_state_api.errors import FunctionError
from forebay_state_api.job.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.job.operator_state import CheckpointedFunction
from forebay_testing.backends.kinds import add
from forebay_testing.backends.subject import ENGINES, Recorded
from forebay_testing.late_reads import late_backend

from ..subjects import OnBoth

_LATE = "late"
_STATES = (
    ValueStateDescriptor("v", int, default=0),
    ListStateDescriptor("l", int),
    MapStateDescriptor("m", int, int),
    ReducingStateDescriptor("r", add, int),
)
_READS = (("v.value",), ("l.get",), ("m.items",), ("r.get",))
_STORED = [5, [1, 2], [(1, 1)], 7]
"""The results of `_READS` before the batch under test."""


class _Awaits(Recorded):
    """A `Recorded` with a record method that may await anything."""

    async def process_element(self, row, ctx):
        return await self.process(self, row, ctx)


def _opened(f, context):
    v, elements, m, r = _STATES
    f.v, f.l = context.get_state(v), context.get_list_state(elements)
    f.m, f.r = context.get_map_state(m), context.get_reducing_state(r)


class TestAwaitables(OnBoth):
    """Each test runs on the unchanged backend, and with answers that are late and out of order."""

    @pytest.fixture(params=[*ENGINES, _LATE])
    def stored(self, request, new_job, backend_class):
        """A job with every shape of state stored under ``k``, none of it in the engine's memory."""
        settings = ENGINES.get(request.param, ENGINES["tight"])
        job = new_job(*_STATES, settings=settings)
        if request.param == _LATE:
            job.backend_class = late_backend(backend_class, seed=1)
        job.do("k", ("v.update", 5), ("l.update", [1, 2]), ("m.put", 1, 1), ("r.add", 7))
        job.restart()
        return job

    @pytest.fixture
    def run(self, stored):
        """Return a function that runs another one over records and returns its rows."""

        def run(process, rows=(("k",),), **more):
            return stored.run(_Awaits(_opened, process), rows, **more)

        return run

    def test_a_turn_of_the_loop_between_read_and_update_keeps_the_order_of_a_key(self, run):
        async def process(f, row, ctx):
            count = await f.v.async_value()
            for _ in range(row[1] % 3):  # later rows of a key may take less time
                await asyncio.sleep(0)
            await f.v.async_update(count + 1)
            await f.l.async_add(row[1])
            return [(row[0], count)]

        rows = [(f"key {number % 4}", number) for number in range(24)]
        for batch in range(2):
            got = run(process, rows)
            for key in {key for key, _ in rows}:
                counts = [count for name, count in got if name == key]
                assert counts == [*range(6 * batch, 6 * batch + 6)]

    def test_asyncio_takes_state_futures_and_other_awaitables_together(self, run):
        async def after_a_turn(value):
            await asyncio.sleep(0)
            return value

        async def process(f, row, ctx):
            reads = asyncio.gather(f.v.async_value(), after_a_turn("x"), f.m.async_get(1))
            async with asyncio.TaskGroup() as group:
                total = group.create_task(_of(f.r.async_get()))
                await f.v.async_update(6)
            within = await asyncio.wait_for(f.m.async_get(2), 100)
            return [(*await reads, total.result(), within, await f.v.async_value())]

        assert run(process) == [(5, "x", 1, 7, None, 6)]

    def test_a_cancelled_wait_neither_undoes_nor_skips_the_access(self, stored, run):
        async def process(f, row, ctx):
            accesses = [
                f.v.async_update(6),
                f.l.async_add(3),
                f.m.async_put(2, 2),
                f.r.async_add(1),  # reads first
                f.m.async_get(1),
            ]
            tasks = [asyncio.ensure_future(_of(access)) for access in accesses]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return [await f.r.async_get()]

        assert run(process) == [8]
        assert stored.do("k", *_READS) == [6, [1, 2, 3], [(1, 1), (2, 2)], 8]

    @pytest.mark.parametrize("fails_in", ["record", "child"])
    def test_a_record_that_fails_after_a_turn_of_the_loop_leaves_nothing_behind(
        self, stored, run, fails_in
    ):
        async def writes(f, number):
            await f.v.async_update(number)
            await f.l.async_add(number)
            await f.m.async_remove(1)
            await f.r.async_add(number)

        async def process(f, row, ctx):
            await writes(f, 100)
            await asyncio.sleep(0)
            if row[1] and fails_in == "child":
                await asyncio.gather(_fails(writes(f, 200)), writes(f, 300))
            await writes(f, 400)
            await asyncio.sleep(0)
            if row[1]:
                raise ValueError("bad row")
            return ["good"]

        stored.error_rows = ErrorRows(limit=1_000_000)
        rows = run(process, [("k", True), ("j", False)])
        (failed,) = (row for row in rows if isinstance(row, FailedRecord))
        assert (failed.key, failed.type) == ("k", "ValueError")
        assert [row for row in rows if row is not failed] == ["good"]
        assert stored.do("k", *_READS) == _STORED
        assert stored.do("j", *_READS) == [400, [100, 400], [], 500]

    def test_a_record_past_its_time_leaves_nothing_behind(self, stored, run):
        async def waits(f):
            try:
                await asyncio.Event().wait()
            finally:
                await f.l.async_add(200)
                await asyncio.sleep(0)
                await f.m.async_put(1, await f.v.async_value())

        async def process(f, row, ctx):
            await f.v.async_update(100)
            await f.r.async_add(100)
            try:
                await asyncio.gather(waits(f), asyncio.to_thread(bool))
            finally:
                await f.l.async_add(300)
                await asyncio.sleep(0)
                await f.v.async_update(400)
            return ["not reached"]

        assert stored.settings is not None
        before = stored.settings
        stored.settings = attrs.evolve(before, record_timeout_s=0.05)
        stored.error_rows = ErrorRows(limit=1_000_000)
        (failed,) = run(process)
        stored.settings = before
        assert (failed.key, failed.type) == ("k", "RecordTimeoutError")
        assert stored.do("k", *_READS) == _STORED

    def test_no_commit_sees_a_record_half_done(self, stored, run):
        open_now = Counter()
        snapshots = []

        class Snapshots(_Awaits, CheckpointedFunction):
            def initialize_state(self, context):
                pass

            def snapshot_state(self, context):
                snapshots.append(open_now.total())

        async def process(f, row, ctx):
            open_now[row[0]] += 1
            await f.v.async_update(await f.v.async_value() + 1)
            await asyncio.sleep(0)
            await f.v.async_update(await f.v.async_value() + 1)
            open_now[row[0]] -= 1

        keys = [f"key {number}" for number in range(5)]
        stored.run(Snapshots(_opened, process), [(key,) for key in keys])
        assert snapshots == [0]
        run(process, [(key,) for key in keys], crash=True)
        stored.restart()
        assert [stored.peek(_STATES[0], key) for key in keys] == [2] * 5

    def test_a_batch_that_fails_while_records_wait_commits_nothing(self, stored, run):
        ended = []

        async def process(f, row, ctx):
            await f.v.async_update(100)
            try:
                await asyncio.sleep(0 if row[0] == "k" else 1_000)
                raise ValueError("bad row")
            finally:
                await asyncio.sleep(0)
                ended.append(await f.v.async_value())
                await f.v.async_update(200)

        with pytest.raises(FunctionError, match=r"key 'k'.*bad row"):
            run(process, [("j",), ("k",)])
        assert ended == [100, 100]
        assert stored.do("k", *_READS) == _STORED
        assert stored.do("j", ("v.value",)) == [0]


async def _of(future):
    return await future


async def _fails(work):
    await work
    raise ValueError("bad row")
