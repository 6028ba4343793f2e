"""The lsm backend if every request takes 5 ms: ``python -m benchmarks.lsm_remote`` (3 minutes).

Measures a cold batch of random keys, opening a large state in a fresh process, and the gain from
asynchronous reads that cannot be predicted: map entries chosen by a value that was just read. It
does not use Spark.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from typing import Any, Final

import attrs
import click

from benchmarks.lsm_state import (
    GROUPS,
    SPEC,
    UNCOMPACTED,
    SlowStorage,
    State,
    asked,
    five_runs,
    group_of,
    key_of,
)
from benchmarks.memory import in_fresh_process
from benchmarks.report import Line, Result, benchmark
from forebay_backend_lsm import LsmBackend
from forebay_backend_lsm.cache import CACHE
from forebay_engine.execution.subtask import Subtask
from forebay_state_api import KeyedProcessFunction, MapStateDescriptor, ValueStateDescriptor
from forebay_state_api.contract.backend import Opening
from forebay_state_api.contract.changes import ABSENT
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.settings import EngineSettings
from forebay_state_api.storage.opening import open_storage
from forebay_testing import CountingStorage, KeyedJob

COLD_KEYS: Final = 1_000
LIMITS: Final = (1, 10, 100, 1_000, 6_000)
"""Numbers of records in flight for which the throughput is shown."""
ENTRIES: Final = 50
"""Entries of each map."""


def cold_batch(state: State, keys: int, seed: int) -> tuple[float, float]:
    """Measure wall and CPU seconds of reading random keys that are not in memory."""
    CACHE.clear()
    backend = LsmBackend.open(state.opening(SlowStorage(open_storage(state.folder))))
    table = backend.table(SPEC)
    batch = asked(random.Random(seed).sample(range(keys), COLD_KEYS))
    wall, cpu = time.perf_counter(), time.process_time()
    found = table.get_many(None, batch)
    taken = time.perf_counter() - wall, time.process_time() - cpu
    backend.close()
    if ABSENT in found:
        raise RuntimeError("a key was not found")
    return taken


def measure_cold(folder: str, keys: int, repetitions: int) -> list[Line]:
    """Measure random keys in five runs."""
    state = five_runs(folder, keys)
    cold_batch(state, keys, 99)
    taken = [cold_batch(state, keys, seed) for seed in range(repetitions)]
    what = f"{COLD_KEYS:,} random keys of {keys:,} in 5 runs, nothing in memory, 5 ms per request"
    parts = zip(("", ", CPU"), (130, 200), zip(*taken, strict=True), strict=True)
    return [
        Line(
            what=what + part,
            values=[1e3 * seconds for seconds in values],
            bound=bound,
            at_least=False,
            unit="ms",
        )
        for part, bound, values in parts
    ]


def open_once(opening: Opening) -> tuple[float, int, int]:
    """Open until the table can be read; return seconds, bytes read and bytes of the state."""
    storage = CountingStorage(opening.storage)
    start = time.perf_counter()
    backend = LsmBackend.open(attrs.evolve(opening, storage=storage))
    backend.table(SPEC)
    seconds = time.perf_counter() - start
    backend.close()
    files = [file for parent in opening.parents for file in parent.files]
    return seconds, storage.bytes_read, sum(file.size for file in files)


def open_in_process(folder: str, state: State) -> tuple[float, int, int]:
    """Run `open_once` in a fresh process, which has nothing of the state cached."""
    return open_once(State(folder, state.options, state.version, state.state).opening())


def measure_opening(folder: str, keys: int, repetitions: int) -> Line:
    """Measure opening a state in ten files, as compaction leaves it."""
    state = State(folder, options=UNCOMPACTED)
    for run in range(10):
        state.commit(range(run * keys // 10, (run + 1) * keys // 10), slice_cells=200_000)
    taken = [in_fresh_process(open_in_process, folder, state) for _ in range(repetitions)]
    _, read, size = taken[0]
    return Line(
        what=f"open {size / 1e9:.2f} GB of state, {keys:,} keys, in a fresh process",
        values=[1e3 * seconds for seconds, _, _ in taken],
        bound=100,
        at_least=False,
        unit="ms",
        detail=f"{len(state.state.files)} files, {read / 1e6:.1f} MB read",
    )


class Chosen(KeyedProcessFunction[bytes, Any, int]):
    """Reads a value, then the map entry that it names; emits one row for each row."""

    def open(self, context: Any) -> None:
        """Declare the states."""
        self.choice = context.get_state(ValueStateDescriptor("choice", int))
        self.entries = context.get_map_state(MapStateDescriptor("entries", int, int))


class ChosenSync(Chosen):
    """Makes the reads with synchronous calls."""

    def process_element(self, row: Any, ctx: Any) -> list[int]:
        """Read twice."""
        return [self.entries.get(self.choice.value())]


class ChosenCoroutine(Chosen):
    """Makes the reads in a coroutine."""

    async def process_element(self, row: Any, ctx: Any) -> list[int]:
        """Read twice."""
        return [await self.entries.async_get(await self.choice.async_value())]


class Filled(Chosen):
    """Writes the state that the others read."""

    def process_element(self, row: Any, ctx: Any) -> list[int]:
        """Write a value and a map."""
        self.choice.update(row % ENTRIES)
        self.entries.put_all({entry: row + entry for entry in range(ENTRIES)})
        return []


def job_on(storage: ObjectStorage, limit: int) -> KeyedJob:
    """A job with a limit of records in flight, which keeps no blocks in memory."""
    return KeyedJob(
        LsmBackend,
        storage,
        max_parallelism=len(GROUPS),
        key_type=bytes,
        settings=EngineSettings(read_ahead=False, in_flight_limit=limit),
        options={"block-cache-bytes": 0},
    )


def feed(running: Subtask, numbers: list[int]) -> None:
    """Process records completely."""
    keys, groups = [key_of(number) for number in numbers], list(map(group_of, numbers))
    running.process(numbers, keys, groups)
    running.drain()


def measure_asynchrony(
    folder: str, keys: int, repetitions: int
) -> tuple[list[Line], dict[int, float]]:
    """Compare coroutine and synchronous calls, in turn; return rates by the in-flight limit too."""
    with job_on(open_storage(folder), 6_000).subtask(Filled()) as running:
        feed(running, list(range(keys)))
        running.commit()
    slow = SlowStorage(open_storage(folder))

    def rate(function: Any, count: int, limit: int, seed: int) -> float:
        job = job_on(slow, limit)
        job.batch_id = 1
        numbers = random.Random(seed).sample(range(keys), count)
        with job.subtask(function) as running:
            start = time.perf_counter()
            feed(running, numbers)
            seconds = time.perf_counter() - start
            rows = running.take_rows()
        if sorted(rows) != sorted(number + number % ENTRIES for number in numbers):
            raise RuntimeError("wrong values were read")
        return count / seconds

    ratios, figures = [], []
    for seed in range(repetitions):
        slowly = rate(ChosenSync(), 50, 1, seed)
        quickly = rate(ChosenCoroutine(), 5_000, 6_000, seed)
        ratios.append(quickly / slowly)
        figures.append((quickly, slowly))
    medians = [statistics.median(column) for column in zip(*figures, strict=True)]
    line = Line(
        what="map entries chosen by a value just read, no cache, 5 ms per request: coroutine ÷ "
        "synchronous",
        values=ratios,
        bound=30,
        at_least=True,
        detail=f"{medians[0]:,.0f} / {medians[1]:,.0f} records/s",
    )
    rates = {n: rate(ChosenCoroutine(), min(5_000, 50 * n), n, 7) for n in LIMITS}
    return [line], rates


@benchmark("lsm-remote")
@click.option(
    "--keys", default=1_000_000, show_default=True, help="Keys of the state for the cold batch."
)
@click.option("--large", default=12_000_000, show_default=True, help="Keys of the opened state.")
@click.option("--maps", default=20_000, show_default=True, help="Keys with a map each.")
@click.option("--repetitions", default=5, show_default=True)
def main(*, keys: int, large: int, maps: int, repetitions: int) -> Result:
    """Measure reads of remote state."""
    with tempfile.TemporaryDirectory() as folder:
        lines = measure_cold(f"{folder}/cold", keys, repetitions) if keys else []
        lines += [measure_opening(f"{folder}/large", large, repetitions)] if large else []
        more, rates = measure_asynchrony(f"{folder}/maps", maps, repetitions)
        lines += more
    shown = ", ".join(f"{limit:,}: {rate:,.0f}" for limit, rate in rates.items())
    note = f"Records/s by in-flight limit: {shown}."
    return Result(lines=lines, notes=[note], data={"rates": rates})


if __name__ == "__main__":
    main()
