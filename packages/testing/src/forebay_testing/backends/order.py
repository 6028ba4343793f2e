"""Order (docs/reference/state.md): when accesses take effect, and how many are in flight."""

from __future__ import annotations

import collections
from typing import Any

import pytest

from forebay_state_api.job.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.settings import EngineSettings
from forebay_testing.backends.kinds import add
from forebay_testing.backends.subject import BackendSubject, Manner, NewJob, Recorded
from forebay_testing.job import KeyedJob
from forebay_testing.scripts import Script, script_function


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
