"""Order (docs/reference/state.md): when accesses take effect, and how many are in flight."""

from __future__ import annotations

import collections
import uuid
import warnings
from typing import Any

import pytest

from forebay_state_api.contract.backend import Capability, StateBackend
from forebay_state_api.job.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.metrics.engine import EngineMetrics
from forebay_state_api.settings import EngineSettings
from forebay_testing.backends.kinds import add
from forebay_testing.backends.subject import BackendSubject, Manner, NewJob, Recorded
from forebay_testing.job import KeyedJob
from forebay_testing.scripts import Script, Style, script_function


class OrderTests(BackendSubject):
    """Order per key, progress across keys, limits."""

    @pytest.fixture
    def ordered(self, new_job: NewJob, manner: Manner) -> KeyedJob:
        """A job whose states are read before they are written."""
        return new_job(
            ValueStateDescriptor("v", int),
            ListStateDescriptor("l", int),
            MapStateDescriptor("m", str, int),
            ReducingStateDescriptor("r", add, int),
            **manner._asdict(),
        )

    def test_requests_of_a_key_take_effect_in_the_order_of_their_issue(
        self, ordered: KeyedJob
    ) -> None:
        ordered.do("k", ("v.update", 1), ("r.add", 1), ("m.put", "x", 1), ("l.add", 1))
        accesses = [
            ("v.value",),
            ("v.update", 100),
            ("v.value",),
            ("r.add", 2),
            ("r.add", 3),
            ("r.add", 4),
            ("r.get",),
            ("m.get", "x"),
            ("m.put", "x", 2),
            ("m.get", "x"),
            ("m.remove", "x"),
            ("m.contains", "x"),
            ("l.get",),
            ("l.add", 2),
            ("l.get",),
            ("v.clear",),
            ("v.value",),
        ]
        results = ordered.do("k", *accesses)
        reads = {0: 1, 2: 100, 6: 10, 7: 1, 9: 2, 11: False, 12: [1], 14: [1, 2], 16: None}
        assert {n: results[n] for n in reads} == reads

    def test_records_of_a_key_see_each_other_in_order(self, ordered: KeyedJob) -> None:
        ordered.scripts([(key, [("r.add", 100), ("l.add", -1)]) for key in "abc"])
        calls = [
            (
                key,
                [("r.get",), ("r.add", 1), ("l.add", n), ("l.get",), ("v.value",), ("v.update", n)],
            )
            for n in range(6)
            for key in "abcd"
        ]
        results = ordered.scripts(calls)
        for (key, _), result, n in zip(calls, results, _rounds(), strict=True):
            base = 0 if key == "d" else 100
            assert result[0] == (base + n or None)
            assert result[3] == ([] if key == "d" else [-1]) + list(range(n + 1))
            assert result[4] == (n - 1 if n else None)

    def test_rows_of_a_key_go_out_in_the_order_of_its_records(
        self, new_job: NewJob, engine_settings: EngineSettings
    ) -> None:
        job = new_job(ValueStateDescriptor("v", int), settings=engine_settings)
        job.scripts([(key, [("v.update", 0)]) for key in range(10)])

        def opened(f: Any, context: Any) -> None:
            f.v = context.get_state(ValueStateDescriptor("v", int))

        async def process(f: Any, row: Any, ctx: Any) -> Any:
            for _ in range(row[1] % 3):
                await f.v.async_value()
                f.v.clear()
            return [row]

        rows = [(n % 10, n) for n in range(100)]
        by_key = collections.defaultdict(list)
        for key, number in job.run(Recorded(opened, process), rows):
            by_key[key].append(number)
        assert by_key == {key: list(range(key, 100, 10)) for key in range(10)}

    def test_one_record_of_a_key_at_a_time(
        self, new_job: NewJob, engine_settings: EngineSettings
    ) -> None:
        job = new_job(MapStateDescriptor("m", int, int), settings=engine_settings)
        running: set[Any] = set()

        def opened(f: Any, context: Any) -> None:
            f.m = context.get_map_state(MapStateDescriptor("m", int, int))

        def process(f: Any, row: Any, ctx: Any) -> None:
            assert row[0] not in running, "the record before it has not ended"
            running.add(row[0])
            chain = f.m.async_get(row[1])
            for step in range(3):
                chain = chain.then_compose(lambda _, step=step: f.m.async_get(step + 1000))
            chain.then_accept(lambda _: running.discard(row[0]))

        job.run(Recorded(opened, process), [(n % 4, n) for n in range(40)])
        assert not running

    def test_limits_hold_and_everything_is_drained(
        self, new_job: NewJob, backend_class: type[StateBackend]
    ) -> None:
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

    def test_a_lone_request_does_not_wait_for_its_batch_to_fill(self, new_job: NewJob) -> None:
        patient = EngineSettings(read_ahead=False, batch_size=1_000_000, drain_timeout_s=0.5)
        job = new_job(ValueStateDescriptor("v", int), settings=patient)
        job.do("k", ("v.update", 1))
        assert job.do("k", ("v.value",), ("v.update", 2), ("v.value",)) == [1, None, 2]

    def test_points_are_read_ahead_in_few_batches(
        self, new_job: NewJob, backend_class: type[StateBackend]
    ) -> None:
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
        self, new_job: NewJob, backend_class: type[StateBackend]
    ) -> None:
        values = [ValueStateDescriptor(name, int) for name in "ab"]

        def opened(f: Any, context: Any) -> None:
            f.a, f.b = map(context.get_state, values)

        async def process(f: Any, row: Any, ctx: Any) -> Any:
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

    def test_more_cells_than_the_engine_holds(
        self, new_job: NewJob, monkeypatch: pytest.MonkeyPatch, engine_settings: EngineSettings
    ) -> None:
        monkeypatch.setattr("forebay_engine.execution.engine.SPILL_CELLS", 10)
        job = new_job(
            ValueStateDescriptor("v", int),
            ReducingStateDescriptor("r", add, int),
            ListStateDescriptor("l", int),
            MapStateDescriptor("m", int, int),
            settings=engine_settings,
        )
        adds = [("r.add", 1), ("l.add", 1), ("m.put", 1, 1), ("v.update", 1)]
        reads = [("r.get",), ("l.get",), ("m.items",), ("v.value",)]
        with job.subtask(script_function(job.style, job.descriptors)) as running:
            for turn in range(3):
                rows = [Script(key, 100 * turn + key, [*adds, *reads]) for key in range(20)]
                job.feed(running, job.keyed(rows))  # several chunks of one batch
            running.drain()
            results = dict(running.take_rows())
            running.commit()
        for turn in range(3):
            count = turn + 1
            assert results[100 * turn + 7][4:] == [count, [1] * count, [(1, 1)], 1]


def _rounds() -> Any:
    return (n for n in range(6) for _ in "abcd")


def _metrics(job: KeyedJob) -> EngineMetrics:
    return job.reports[0].metrics
