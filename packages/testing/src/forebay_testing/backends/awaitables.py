"""Functions that await more than state (docs/how-to/await-anything.md)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import attrs
import pytest

from forebay_engine.isolation.failed_record import ErrorRows, FailedRecord
from forebay_state_api.contract.backend import StateBackend
from forebay_state_api.errors import FunctionError
from forebay_state_api.job.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.job.operator_state import CheckpointedFunction
from forebay_testing.backends.kinds import add
from forebay_testing.backends.subject import ENGINES, BackendSubject, NewJob, Recorded
from forebay_testing.job import KeyedJob
from forebay_testing.late_reads import late_backend

_LATE: Final = "late"
_STATES: Final = (
    ValueStateDescriptor("v", int, default=0),
    ListStateDescriptor("l", int),
    MapStateDescriptor("m", int, int),
    ReducingStateDescriptor("r", add, int),
)
_READS: Final = (("v.value",), ("l.get",), ("m.items",), ("r.get",))
_STORED: Final = [5, [1, 2], [(1, 1)], 7]
"""The results of `_READS` before the batch under test."""

Run = Callable[..., list[Any]]


class _Awaits(Recorded):
    """As `Recorded`, with a record method that may await anything."""

    async def process_element(self, row: Any, ctx: Any) -> Any:
        return await self.process(self, row, ctx)


def _opened(f: Any, context: Any) -> None:
    v, elements, m, r = _STATES
    f.v, f.l = context.get_state(v), context.get_list_state(elements)
    f.m, f.r = context.get_map_state(m), context.get_reducing_state(r)


class AwaitableTests(BackendSubject):
    """Each test runs on the unchanged backend, and with answers that are late and out of order."""

    @pytest.fixture(params=[*ENGINES, _LATE])
    def stored(
        self, request: pytest.FixtureRequest, new_job: NewJob, backend_class: type[StateBackend]
    ) -> KeyedJob:
        """A job with every shape of state stored under ``k``, none of it in the engine's memory."""
        settings = ENGINES.get(request.param, ENGINES["tight"])
        job = new_job(*_STATES, settings=settings)
        if request.param == _LATE:
            job.backend_class = late_backend(backend_class, seed=1)
        job.do("k", ("v.update", 5), ("l.update", [1, 2]), ("m.put", 1, 1), ("r.add", 7))
        job.restart()
        return job

    @pytest.fixture
    def run(self, stored: KeyedJob) -> Run:
        """Return a function that runs another one over records and returns its rows."""

        def run(process: Callable[..., Any], rows: Any = (("k",),), **more: Any) -> list[Any]:
            return stored.run(_Awaits(_opened, process), rows, **more)

        return run

    def test_a_turn_of_the_loop_between_read_and_update_keeps_the_order_of_a_key(
        self, run: Run
    ) -> None:
        async def process(f: Any, row: Any, ctx: Any) -> list[Any]:
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

    def test_asyncio_takes_state_futures_and_other_awaitables_together(self, run: Run) -> None:
        async def after_a_turn(value: Any) -> Any:
            await asyncio.sleep(0)
            return value

        async def process(f: Any, row: Any, ctx: Any) -> list[Any]:
            reads = asyncio.gather(f.v.async_value(), after_a_turn("x"), f.m.async_get(1))
            async with asyncio.TaskGroup() as group:
                total = group.create_task(_of(f.r.async_get()))
                await f.v.async_update(6)
            within = await asyncio.wait_for(f.m.async_get(2), 100)
            return [(*await reads, total.result(), within, await f.v.async_value())]

        assert run(process) == [(5, "x", 1, 7, None, 6)]

    def test_a_cancelled_wait_neither_undoes_nor_skips_the_access(
        self, stored: KeyedJob, run: Run
    ) -> None:
        async def process(f: Any, row: Any, ctx: Any) -> list[Any]:
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
        self, stored: KeyedJob, run: Run, fails_in: str
    ) -> None:
        async def writes(f: Any, number: int) -> None:
            await f.v.async_update(number)
            await f.l.async_add(number)
            await f.m.async_remove(1)
            await f.r.async_add(number)

        async def process(f: Any, row: Any, ctx: Any) -> list[Any]:
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

    def test_a_record_past_its_time_leaves_nothing_behind(self, stored: KeyedJob, run: Run) -> None:
        async def waits(f: Any) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await f.l.async_add(200)
                await asyncio.sleep(0)
                await f.m.async_put(1, await f.v.async_value())

        async def process(f: Any, row: Any, ctx: Any) -> list[Any]:
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

    def test_no_commit_sees_a_record_half_done(self, stored: KeyedJob, run: Run) -> None:
        open_now: Counter[str] = Counter()
        snapshots = []

        class Snapshots(_Awaits, CheckpointedFunction):
            def initialize_state(self, context: Any) -> None:
                pass

            def snapshot_state(self, context: Any) -> None:
                snapshots.append(open_now.total())

        async def process(f: Any, row: Any, ctx: Any) -> None:
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

    def test_a_batch_that_fails_while_records_wait_commits_nothing(
        self, stored: KeyedJob, run: Run
    ) -> None:
        ended = []

        async def process(f: Any, row: Any, ctx: Any) -> None:
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


async def _of(future: Any) -> Any:
    return await future


async def _fails(work: Any) -> None:
    await work
    raise ValueError("bad row")
