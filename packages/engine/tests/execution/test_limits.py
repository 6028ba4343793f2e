"""Records in flight: one of a key, within limits, read ahead, and without waiting for others."""

from __future__ import annotations

import uuid
import warnings

from forebay_state_api.contract.backend import Capability
from forebay_state_api.job.descriptors import (
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.settings import EngineSettings
from forebay_testing.backends.kinds import add
from forebay_testing.backends.subject import Recorded
from forebay_testing.scripts import Style

from ..subjects import OnBoth


class TestLimits(OnBoth):
    def test_one_record_of_a_key_at_a_time(self, new_job, engine_settings):
        job = new_job(MapStateDescriptor("m", int, int), settings=engine_settings)
        running = set()

        def opened(f, context):
            f.m = context.get_map_state(MapStateDescriptor("m", int, int))

        def process(f, row, ctx):
            assert row[0] not in running, "the record before it has not ended"
            running.add(row[0])
            chain = f.m.async_get(row[1])
            for step in range(3):
                chain = chain.then_compose(lambda _, step=step: f.m.async_get(step + 1000))
            chain.then_accept(lambda _: running.discard(row[0]))

        job.run(Recorded(opened, process), [(n % 4, n) for n in range(40)])
        assert not running

    def test_limits_hold_and_everything_is_drained(self, new_job, backend_class):
        limits = EngineSettings(
            read_ahead=False, in_flight_limit=5, batch_size=3, drain_timeout_s=5
        )
        job = new_job(ValueStateDescriptor("v", int), style=Style.COROUTINE, settings=limits)
        job.scripts([(n % 30, [("v.value",), ("v.update", n)]) for n in range(90)])
        metrics = _metrics(job)
        assert (metrics.in_flight, metrics.waiting_requests, metrics.blocked_keys) == (0, 0, 0)
        assert (metrics.records, metrics.rows_out) == (90, 90)
        if Capability.RESIDENT in backend_class.capabilities:
            assert metrics.requests == 0, "memory answers"
        else:
            assert 0 < metrics.largest_in_flight <= 5
            assert metrics.requests <= metrics.request_batches * 3

    def test_a_lone_request_does_not_wait_for_its_batch_to_fill(self, new_job):
        patient = EngineSettings(read_ahead=False, batch_size=1_000_000, drain_timeout_s=0.5)
        job = new_job(ValueStateDescriptor("v", int), settings=patient)
        job.do("k", ("v.update", 1))
        assert job.do("k", ("v.value",), ("v.update", 2), ("v.value",)) == [1, None, 2]

    def test_points_are_read_ahead_in_few_batches(self, new_job, backend_class):
        job = new_job(ValueStateDescriptor("v", int), ReducingStateDescriptor("r", add, int))
        job.scripts([(n, [("v.update", n)]) for n in range(50)])
        job.restart()
        got = job.scripts([(n, [("v.value",), ("r.add", 1), ("r.get",)]) for n in range(60)])
        assert got == [[n if n < 50 else None, None, 1] for n in range(60)]
        metrics = _metrics(job)
        assert metrics.requests == 0
        if Capability.RESIDENT not in backend_class.capabilities:
            assert metrics.read_ahead_cells == 120

    def test_synchronous_accesses_that_stop_asynchronous_ones_warn_once(
        self, new_job, backend_class
    ):
        values = [ValueStateDescriptor(name, int) for name in "ab"]

        def opened(f, context):
            f.a, f.b = map(context.get_state, values)

        async def process(f, row, ctx):
            await f.a.async_value()
            return [f.b.value()]

        apart = EngineSettings(read_ahead=False, drain_timeout_s=5)
        job = new_job(*values, settings=apart, uid=f"mixing-{uuid.uuid4()}")
        job.scripts([(n, [("a.update", n), ("b.update", n)]) for n in range(5)])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                job.restart()
                assert job.run(Recorded(opened, process), [(n,) for n in range(5)]) == [*range(5)]
        warned = [str(one.message) for one in caught if job.uid in str(one.message)]
        if Capability.RESIDENT in backend_class.capabilities:
            assert warned == [], "memory answers"
        else:
            assert len(warned) == 1
            assert "state 'b'" in warned[0]


def _metrics(job):
    return job.reports[0].metrics
