"""Ranges of a sorted map: ``python -m benchmarks.sorted_map`` (a minute).

Measures the engine on both backends, without Spark. A key's map is stored in ten versions; each
record of a later micro-batch reads the ten entries of a range, from a `SortedMapState` by `range`,
or from a `MapState` by a pass over its entries. Then the same ranges of a map ten times as large.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from typing import Any, Final

import click

from benchmarks.report import Line, Result, benchmark
from forebay_backend_heap import HeapBackend
from forebay_backend_lsm import LsmBackend
from forebay_state_api import (
    KeyedProcessFunction,
    MapStateDescriptor,
    SortedMapStateDescriptor,
    key_group_of,
)
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing import KeyedJob

MAX_PARALLELISM: Final = 128
VERSIONS: Final = 10
RANGE: Final = 10
BEGINNING: Final = 1_767_225_600_000_000
"""The first key: keys are times in µs, a second apart."""
SECOND: Final = 1_000_000
_numbers = itertools.count()


class Ranges(KeyedProcessFunction[str, Any, Any]):
    """Puts the keys of a row, or reads the range that begins with its only key."""

    def __init__(self, *, ordered: bool) -> None:
        kind = SortedMapStateDescriptor if ordered else MapStateDescriptor
        self.descriptor = kind("m", int, float)
        self.ordered = ordered

    def open(self, context: Any) -> None:
        get = context.get_sorted_map_state if self.ordered else context.get_map_state
        self.map = get(self.descriptor)

    async def process_element(self, row: Any, ctx: Any) -> Any:
        keys = row[1]
        if len(keys) > 1:
            await self.map.async_put_all(dict.fromkeys(keys, 1.5))
            return None
        start, stop = keys[0], keys[0] + RANGE * SECOND
        if self.ordered:
            found = [entry async for entry in await self.map.async_range(start, stop)]
        else:
            entries = await self.map.async_items()
            found = sorted([one async for one in entries if start <= one[0] < stop])
        return [len(found)]


def micro_batch(job: KeyedJob, function: Any, rows: list[Any]) -> tuple[float, list[Any]]:
    """Run and commit a micro-batch of one key; return the seconds of its records, and its rows."""
    group = key_group_of("k", MAX_PARALLELISM)
    with job.subtask(function) as subtask:
        start = time.perf_counter()
        subtask.process(rows, ["k"] * len(rows), [group] * len(rows))
        subtask.drain()
        seconds = time.perf_counter() - start
        found = subtask.take_rows()
        subtask.commit()
    job.batch_id += 1
    return seconds, found


def seconds_per_read(backend: Any, entries: int, reads: int, *, ordered: bool) -> float:
    """Store a map of ``entries``; return the seconds of a record that reads a range of it."""
    storage = MemoryStorage(f"memory://benchmark-{next(_numbers)}")
    job = KeyedJob(backend, storage, max_parallelism=MAX_PARALLELISM, key_type=str)
    function, rng = Ranges(ordered=ordered), random.Random(entries)
    keys = [BEGINNING + n * SECOND for n in rng.sample(range(entries), entries)]
    for version in range(VERSIONS):
        micro_batch(job, function, [("k", keys[version::VERSIONS])])
    rows = [("k", [BEGINNING + rng.randrange(entries - RANGE) * SECOND]) for _ in range(reads)]
    micro_batch(job, function, rows[:1])  # the blocks are in the cache, the order is known
    seconds, found = micro_batch(job, function, rows)
    assert found == [RANGE] * reads
    return seconds / reads


@benchmark("sorted-map")
@click.option("--entries", default=10_000, show_default=True)
@click.option("--reads", default=1_000, show_default=True, help="Ranges read of a sorted map.")
@click.option("--repetitions", default=3, show_default=True)
def main(*, entries: int, reads: int, repetitions: int) -> Result:
    """Measure ranges of a sorted map."""
    lines = []
    for name, backend in (("heap", HeapBackend), ("lsm", LsmBackend)):
        lines += _lines(name, backend, entries, reads, repetitions)
    return Result(lines=lines, notes=[])


def _lines(name: str, backend: Any, entries: int, reads: int, repetitions: int) -> list[Line]:
    plain, ordered, large = ([], [], [])  # type: tuple[list[float], list[float], list[float]]
    for _ in range(repetitions):
        plain.append(seconds_per_read(backend, entries, reads // 20, ordered=False))
        ordered.append(seconds_per_read(backend, entries, reads, ordered=True))
        large.append(seconds_per_read(backend, 10 * entries, reads, ordered=True))
    of_plain, of_ordered, of_large = (
        1e6 * statistics.median(one) for one in (plain, ordered, large)
    )
    return [
        Line(
            what=f"{name}: {RANGE} of {entries:,} entries, a pass over MapState ÷ a range",
            values=[a / b for a, b in zip(plain, ordered, strict=True)],
            bound=50.0,
            at_least=True,
            detail=f"{of_plain:,.0f} / {of_ordered:,.0f} µs a record",
        ),
        Line(
            what=f"{name}: a range of {10 * entries:,} entries ÷ of {entries:,}",
            values=[a / b for a, b in zip(large, ordered, strict=True)],
            bound=2.0,
            at_least=False,
            detail=f"{of_large:,.0f} / {of_ordered:,.0f} µs a record",
        ),
    ]


if __name__ == "__main__":
    main()
