"""State read from outside: to Arrow, look-ups, the follower, and the command line.

``python -m benchmarks.reading`` (4 minutes). It does not use Spark. Rows per second are of CPU
time, with Arrow limited to one thread; cold keys are timed with the version open.
"""

from __future__ import annotations

import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import click
import pyarrow as pa

from benchmarks.lsm_state import SlowStorage
from benchmarks.report import Line, Result, benchmark
from forebay_backend_heap import HeapBackend
from forebay_backend_lsm import LsmBackend
from forebay_backend_lsm.cache import CACHE
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor
from forebay_state_api.keys import key_group_of
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.reading import FollowOptions, Snapshot, open_state
from forebay_state_processor.reading.snapshot import snapshot_of
from forebay_state_processor.reading.version_choice import OperatorSource, reader_settings
from forebay_testing import KeyedJob
from forebay_testing.keyed_row import KeyedRow

GROUPS: Final = 128
PARALLELISM: Final = 4
COLD_KEYS: Final = 1_000
HOT_READS: Final = 20_000
POLL_S: Final = 2.0
"""The pause of a follower by default."""
RATES: Final = {"heap": 500_000, "lsm": 400_000}
"""Backend → the fewest rows of a value state to Arrow per second of CPU."""
COLD_MS: Final = 130.0
HOT_MS: Final = 1.0
START_S: Final = 0.5
_UNCOMPILED: Final = "PYTHONDONTWRITEBYTECODE"
WHERE: Final[dict[str, Any]] = {"query": "query", "uid": "operator"}


class Put(KeyedProcessFunction[str, Any, Any]):
    """Writes a number and a record for each row."""

    def open(self, context: Any) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int))
        record = "count bigint, total double"
        self.account = context.get_state(ValueStateDescriptor("account", record))

    def process_element(self, row: Any, ctx: Any) -> None:
        self.count.update(row)
        self.account.update((row, row / 3))


def key_of(number: int) -> str:
    """Return a key."""
    return f"user-{number:07d}"


def make_state(backend: Any, folder: str, keys: int) -> KeyedJob:
    """Store ``keys`` keys, and one version above that, which makes them final."""
    job = KeyedJob(
        backend,
        open_storage(folder),
        key_type=str,
        max_parallelism=GROUPS,
        parallelism=PARALLELISM,
    )
    job.process(Put(), [_row(number, number) for number in range(keys)])
    job.process(Put(), [_row(0, 1)])
    return job


def _row(number: int, value: int) -> KeyedRow:
    key = key_of(number)
    return KeyedRow(value, key, key_group_of(key, GROUPS), 0)


def rows_per_second(snapshot: Snapshot, table: Callable[[Snapshot], Any], keys: int) -> float:
    """Return rows to Arrow per second of CPU."""
    started = time.process_time()
    rows: int = sum(batch.num_rows for batch in table(snapshot))
    taken: float = time.process_time() - started
    assert rows == keys
    return rows / taken


def to_arrow(name: str, folder: str, keys: int, repetitions: int) -> list[Line]:
    """Measure a value state, a state of records, and the whole operator."""
    pa.set_cpu_count(1)
    tables: dict[str, tuple[Callable[[Snapshot], Any], float]] = {
        "a state of ints": (lambda one: one.to_arrow("count"), RATES[name]),
        "a state of records": (lambda one: one.to_arrow("account"), RATES[name] / 2),
        "the operator, two states joined": (lambda one: one.table(), RATES[name] / 4),
    }
    with open_state(folder, **WHERE) as snapshot:
        return [
            Line(
                what=f"{name}: {what} to Arrow",
                values=[rows_per_second(snapshot, table, keys) / 1e3 for _ in range(repetitions)],
                bound=bound / 1e3,
                at_least=True,
                unit="1,000 rows/s",
                detail=f"{keys:,} keys",
            )
            for what, (table, bound) in tables.items()
        ]


def cold_ms(folder: str, keys: int, seed: int) -> float:
    """Return the milliseconds that look-ups of random keys take if every request takes 5 ms."""
    CACHE.clear()
    storage = SlowStorage(open_storage(folder))
    source = OperatorSource.with_settings(storage, settings=reader_settings({}), **WHERE)
    asked = [key_of(number) for number in random.Random(seed).sample(range(keys), COLD_KEYS)]
    with snapshot_of(source, source.choose(1)) as snapshot:
        started = time.perf_counter()
        found = snapshot.get_many("count", asked)
        taken = time.perf_counter() - started
    assert None not in found
    return 1e3 * taken


def follower_lines(name: str, job: KeyedJob, folder: str, versions: int) -> list[Line]:
    """Measure hot look-ups while versions come, and how late a version is shown."""
    options = FollowOptions(poll=timedelta(seconds=POLL_S))
    asked = [key_of(number) for number in range(COLD_KEYS)]
    late: list[float] = []
    p99: list[float] = []
    with open_state(folder, **WHERE, follow=options) as follower:
        follower.get_many("count", asked)
        for version in range(versions):
            job.process(Put(), [_row(number, version) for number in range(COLD_KEYS)])
            final = time.perf_counter()  # of the version before
            times = _hot_reads(lambda key: follower.get("count", key), asked)
            p99.append(1e3 * statistics.quantiles(times, n=100)[98])
            assert follower.wait_for(job.batch_id - 1, 60)
            late.append((time.perf_counter() - final) / POLL_S)
    hot = Line(
        what=f"{name}: a follower's hot get, p99",
        values=p99,
        bound=HOT_MS,
        at_least=False,
        unit="ms",
        detail=f"{HOT_READS:,} reads of {COLD_KEYS:,} keys while versions come",
    )
    shown = Line(
        what=f"{name}: a final version is shown by a follower within",
        values=late,
        bound=1.0,
        at_least=False,
        unit="polls",
        detail=f"a poll every {POLL_S:g} s, {COLD_KEYS:,} cached keys",
    )
    return [hot, shown]


def _hot_reads(get: Callable[[str], Any], asked: Sequence[str]) -> list[float]:
    times = []
    for number in range(HOT_READS):
        key = asked[number % len(asked)]
        started = time.perf_counter()
        get(key)
        times.append(time.perf_counter() - started)
    return times


def start_s(folder: str) -> float:
    """Return the CPU seconds of ``forebay state get``, interpreter included.

    Modules are compiled, as installers leave them: call it once more than is counted.
    """
    code = "from forebay_cli.main import main; main()"
    asked = ["state", "get", key_of(7), "--state-dir", folder]
    compiled = {name: text for name, text in os.environ.items() if name != _UNCOMPILED}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", code, *asked], env=compiled, check=True, capture_output=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@benchmark("reading")
@click.option("--keys", default=1_000_000, show_default=True)
@click.option("--repetitions", default=3, show_default=True)
def main(*, keys: int, repetitions: int) -> Result:
    """Measure readers of committed state."""
    lines: list[Line] = []
    for name, backend in (("heap", HeapBackend), ("lsm", LsmBackend)):
        with tempfile.TemporaryDirectory() as folder:
            job = make_state(backend, folder, keys)
            lines += to_arrow(name, folder, keys, repetitions)
            if name == "lsm":
                lines.append(_cold_line(folder, keys, repetitions))
            lines.append(_start_line(name, folder, repetitions))
            lines += follower_lines(name, job, folder, repetitions)
            job.close()
    return Result(lines=lines)


def _cold_line(folder: str, keys: int, repetitions: int) -> Line:
    return Line(
        what=f"lsm: {COLD_KEYS:,} random keys, cold, 5 ms a request",
        values=[cold_ms(folder, keys, seed) for seed in range(repetitions)],
        bound=COLD_MS,
        at_least=False,
        unit="ms",
        detail=f"of {keys:,} keys in {GROUPS} key groups",
    )


def _start_line(name: str, folder: str, repetitions: int) -> Line:
    return Line(
        what=f"{name}: `forebay state get`, CPU from a cold start",
        values=[start_s(folder) for _ in range(repetitions + 1)][1:],
        bound=START_S,
        at_least=False,
        unit="s",
        detail="interpreter included",
    )


if __name__ == "__main__":
    main()
