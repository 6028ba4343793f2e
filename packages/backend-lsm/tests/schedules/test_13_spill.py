"""Schedule 13: the memtable spills between a read-ahead and a read, and under an iterator."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from forebay_backend_lsm.backend import LsmBackend
from forebay_state_api.job.context import RuntimeContext
from forebay_state_api.job.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.job.functions import KeyedProcessFunction
from forebay_state_api.job.futures import StateFuture
from forebay_state_api.keys import key_group_of
from forebay_state_api.settings import EngineSettings
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing import CountingStorage, KeyedJob

pytestmark = pytest.mark.long

VALUE = ValueStateDescriptor("v", int)
LIST = ListStateDescriptor("l", int)
MAP = MapStateDescriptor("m", str, int)
KEYS = [f"k{number:02d}" for number in range(20)]
SETTINGS = EngineSettings(page_size=3, batch_size=4, in_flight_limit=8, drain_timeout_s=10)


@pytest.fixture
def storage() -> CountingStorage:
    return CountingStorage(MemoryStorage(f"memory://{uuid.uuid4()}"))


@pytest.fixture
def job(storage: CountingStorage, monkeypatch: pytest.MonkeyPatch) -> KeyedJob:
    """Return a job that flushes changes after every other cell, and writes each flush to a file."""
    job = KeyedJob(
        LsmBackend,
        storage,
        descriptors=[VALUE, LIST, MAP],
        settings=SETTINGS,
        options={"memtable-bytes": 1, "block-bytes": 512},
    )
    filled = [("l.add_all", list(range(10))), ("m.put_all", {f"u{n}": n for n in range(10)})]
    job.scripts([(key, [("v.update", 1), *filled]) for key in KEYS])
    job.restart()
    monkeypatch.setattr("forebay_engine.execution.engine.SPILL_CELLS", 2)
    return job


def spills(storage: CountingStorage) -> int:
    """Count the files written since the last reset, including the commit's file."""
    return sum(op == "put" and "/data/" in name for op, name in storage.requests)


def run_in_pieces(
    job: KeyedJob, function: Any, rows: list[tuple[Any, ...]], gates: list[StateFuture[None]]
) -> list[Any]:
    """Run a micro-batch whose rows arrive four at a time, and flush changes after each four.

    After that ``gates`` open, which records of that piece may be waiting for.
    """
    with job.subtask(function) as subtask:
        for start in range(0, len(rows), 4):
            piece = rows[start : start + 4]
            keys = [row[0] for row in piece]
            subtask.process(piece, keys, [key_group_of(key, job.max_parallelism) for key in keys])
            while gates:
                gates.pop().complete(None)
        subtask.drain()
        out = subtask.take_rows()
        subtask.commit()
    job.batch_id += 1
    return out


class Calling(KeyedProcessFunction[Any, Any, Any]):
    """Calls a coroutine function with itself, the row and the context."""

    def __init__(self, body: Callable[..., Any]) -> None:
        self.body = body

    def open(self, context: RuntimeContext) -> None:
        self.v = context.get_state(VALUE)
        self.l = context.get_list_state(LIST)
        self.m = context.get_map_state(MAP)

    async def process_element(self, row: Any, ctx: Any) -> Any:
        return await self.body(self, row)


def test_a_read_ahead_is_not_used_after_a_spill(job: KeyedJob, storage: CountingStorage) -> None:
    """All values are prefetched; each is then written and spilled before it is read again."""

    async def add(function: Any, row: Any) -> list[tuple[str, int]]:
        await function.v.async_update(await function.v.async_value() + row[1])
        return [(row[0], await function.v.async_value())]

    storage.reset()
    rows = [(key, number) for number in (10, 100, 1000) for key in KEYS]
    out = run_in_pieces(job, Calling(add), rows, [])
    assert spills(storage) > 3
    assert dict(out[-len(KEYS) :]) == dict.fromkeys(KEYS, 1111)
    assert [job.peek(VALUE, key) for key in KEYS] == [1111] * len(KEYS)


def test_a_delete_is_not_undone_by_a_spill(job: KeyedJob, storage: CountingStorage) -> None:
    async def toggle(function: Any, row: Any) -> list[Any]:
        seen = await function.v.async_value()
        await (function.v.async_clear() if row[1] == 0 else function.v.async_update(row[1]))
        return [seen]

    storage.reset()
    rows = [(key, number) for number in (0, 7, 0) for key in KEYS]
    out = run_in_pieces(job, Calling(toggle), rows, [])
    assert spills(storage) > 3
    assert out == [1] * len(KEYS) + [None] * len(KEYS) + [7] * len(KEYS)
    job.restart()
    assert run_in_pieces(job, Calling(toggle), [(key, 3) for key in KEYS], []) == [None] * len(KEYS)


@pytest.mark.parametrize("kind", ["list", "map"])
def test_an_iterator_across_a_spill_shows_what_was_there(
    job: KeyedJob, storage: CountingStorage, kind: str
) -> None:
    """Elements are read page by page; between pages the state is changed and spilled."""

    crossed: list[bool] = []
    gates: list[StateFuture[None]] = []

    async def walk(function: Any, row: Any) -> list[Any]:
        seen: list[Any] = []
        before = spills(storage)
        if kind == "list":
            iterator = await function.l.async_get()
        else:
            iterator = await function.m.async_keys()

        async def change(element: Any) -> None:
            seen.append(element)
            number = len(seen)
            if number == 5:
                gate: StateFuture[None] = StateFuture()
                gates.append(gate)
                await gate
            if kind == "list":
                await function.l.async_add(100 + number)
            else:
                await function.m.async_put(f"new{number}", 1)
                await function.m.async_remove(element)

        await iterator.on_next(change)
        crossed.append(spills(storage) > before)
        return [sorted(seen)]

    storage.reset()
    out = run_in_pieces(job, Calling(walk), [(key,) for key in KEYS], gates)
    expected = list(range(10)) if kind == "list" else [f"u{n}" for n in range(10)]
    assert sum(crossed) > 3
    assert out == [expected] * len(KEYS)
    job.restart()
    for key in KEYS[:3]:
        if kind == "list":
            assert sorted(job.peek(LIST, key)) == [*range(10), *range(101, 111)]
        else:
            assert job.peek(MAP, key) == {f"new{n}": 1 for n in range(1, 11)}
