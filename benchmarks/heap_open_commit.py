"""Commit and open of large heap states: ``python -m benchmarks.heap_open_commit`` (a minute).

Measures the backend alone, on local files, without Spark and without a function: the time in which
a micro-batch makes 10,000 changed keys durable, in a state of 100,000 and of 1,000,000 keys; the
time to open the large state in a fresh process, and in a process that holds an earlier version.
"""

from __future__ import annotations

import gc
import random
import statistics
import tempfile
import time
from typing import Any, Final, Self

import attrs
import click

from benchmarks.memory import in_fresh_process, user
from benchmarks.report import Line, benchmark
from forebay_backend_heap import HeapBackend
from forebay_spark_runtime.worker_process.garbage_collection import begin_task
from forebay_state_api.codecs import codec_for
from forebay_state_api.contract.backend import Opening, TableSpec
from forebay_state_api.contract.changes import Changes, PointChanges, Shape
from forebay_state_api.contract.files import CommittedState, ParentState
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.storage.opening import open_storage

GROUPS: Final = KeyGroupRange(0, 127)
SPEC: Final = TableSpec(
    name="totals",
    shape=Shape.POINT,
    kind="value",
    key=codec_for(str, what="key"),
    value=codec_for(tuple[int, int], what="totals"),
)
CACHE_BYTES: Final = 8 << 30


@attrs.frozen
class Version:
    """A committed version: the contents of its manifest."""

    number: int
    manifest_id: str
    state: CommittedState

    def opening(self, folder: str, storage: ObjectStorage | None = None) -> Opening:
        """Return the request to open it."""
        parents = [
            ParentState(
                manifest_id=self.manifest_id,
                range=GROUPS,
                whole=True,
                files=self.state.files,
                meta=self.state.meta,
                descriptions={SPEC.name: SPEC.description()},
            )
        ]
        return Opening(
            storage=storage or open_storage(folder),
            path=folder,
            uid="benchmark",
            version=self.number,
            range=GROUPS,
            parents=parents if self.number else [],
            options={},
            now_us=0,
            cache_bytes=CACHE_BYTES,
        )


class State:
    """A state of a number of keys, of which each commit changes some."""

    def __init__(self, folder: str, keys: int) -> None:
        self.folder = folder
        self.keys = keys
        self.version = Version(0, "", CommittedState(files=()))
        self._random = random.Random(7)

    @classmethod
    def of(cls, folder: str, keys: int) -> Self:
        """Make the state in one commit."""
        state = cls(folder, keys)
        state.commit(range(keys))
        return state

    def commit(self, numbers: Any) -> tuple[float, bool]:
        """Change these keys; return the seconds to make it durable, and whether a snapshot is new.

        The garbage collector runs as in a worker of PySpark, which calls it after the task.
        """
        begin_task()
        backend = HeapBackend.open(self.version.opening(self.folder))
        table = backend.table(SPEC)
        cells = table.space(None).cells
        keys = [user(number) for number in numbers]
        for key in keys:
            cells[key] = (self.version.number, self._random.randrange(1 << 30))
        changes = PointChanges(keys, [hash_group(key) for key in keys], [cells[k] for k in keys])
        start = time.perf_counter()
        table.apply(Changes(points={None: changes}))
        state = backend.commit(self.version.number + 1)
        manifest_id = f"{self.folder}-{self.version.number + 1}"
        backend.installed(manifest_id)
        seconds = time.perf_counter() - start
        backend.close()
        gc.collect()
        before = self.version.state.files[:1]
        self.version = Version(self.version.number + 1, manifest_id, state)
        return seconds, bool(before) and state.files[0] != before[0]

    def draw(self, count: int) -> list[int]:
        """Return some of its keys, chosen at random."""
        return self._random.sample(range(self.keys), count)

    def cycle(self, changed: int) -> list[float]:
        """Commit until a new snapshot is named; return the seconds of each commit.

        A snapshot that is written in the background is named by a later commit.
        """
        taken: list[float] = []
        while True:
            seconds, is_snapshot = self.commit(self.draw(changed))
            taken.append(seconds)
            if is_snapshot:
                return taken


def hash_group(key: str) -> int:
    """Return a key group at little cost; which one does not matter here."""
    return int(key[-4:]) % len(GROUPS)


def open_seconds(folder: str, version: Version) -> float:
    """Open a version of which this process has nothing cached, until its table can be read."""
    opening = version.opening(folder)
    start = time.perf_counter()
    backend = HeapBackend.open(opening)
    table = backend.table(SPEC)
    seconds = time.perf_counter() - start
    if not len(table) == backend.commit(version.number + 1).keys:
        raise RuntimeError("the opened version does not hold what was committed")
    return seconds


def measure_commits(small: State, large: State, changed: int, cycles: int) -> list[Line]:
    """Measure commits in the large and the small state in turn; return the ratios."""
    plain: list[float] = []
    amortised: list[float] = []
    longest: list[float] = []
    figures: list[list[float]] = []
    for _ in range(cycles):
        taken = [state.cycle(changed) for state in (small, large)]
        medians = [*map(statistics.median, taken)]
        means = [*map(statistics.mean, taken)]
        plain.append(medians[1] / medians[0])
        amortised.append(means[1] / means[0])
        longest.append(max(taken[1]) / medians[1])
        figures.append([*medians, *means, medians[1], percentile_99(taken[1]), max(taken[1])])
    columns = [1e3 * statistics.median(column) for column in zip(*figures, strict=True)]
    what = f"commit of {changed:,} keys: state of {large.keys:,} ÷ of {small.keys:,} keys"
    return [
        commit_line(f"{what}, without snapshots", plain, columns[:2]),
        commit_line(f"{what}, snapshots spread over all commits", amortised, columns[2:4]),
        Line(
            what=f"commit of {changed:,} keys, state of {large.keys:,}: longest ÷ median",
            values=longest,
            bound=20.0,
            at_least=False,
            detail="median {:.1f}, p99 {:.1f}, longest {:.1f} ms".format(*columns[4:]),
        ),
    ]


def percentile_99(values: list[float]) -> float:
    """Return the 99th percentile."""
    return statistics.quantiles(values, n=100)[-1]


def commit_line(what: str, values: list[float], times_ms: list[float]) -> Line:
    """Return the line of a ratio of commits, which must not exceed 2."""
    detail = f"{times_ms[1]:.1f} / {times_ms[0]:.1f} ms"
    return Line(what=what, values=values, bound=2.0, at_least=False, detail=detail)


def measure_opening(large: State, repetitions: int) -> Line:
    """Measure the keys per second that a fresh process opens."""
    taken = [
        in_fresh_process(open_seconds, large.folder, large.version) for _ in range(repetitions)
    ]
    files = large.version.state.files
    size = sum(file.size for file in files) / 1e6
    return Line(
        what=f"open {large.keys:,} keys in a fresh process",
        values=[large.keys / seconds / 1e3 for seconds in taken],
        bound=500.0,
        at_least=True,
        unit="k keys/s",
        detail=f"{statistics.median(taken):.2f} s, {len(files)} files, {size:.0f} MB",
    )


def measure_catching_up(large: State, changed: int, repetitions: int) -> Line:
    """Measure the milliseconds to open a version whose parent this process holds."""
    taken = []
    for _ in range(repetitions):
        held = large.version
        large.commit(large.draw(changed))
        newest, large.version = large.version, held
        large.commit(large.draw(1))  # the cache now holds a lost attempt, which must not be used
        large.version = newest
        HeapBackend.open(held.opening(large.folder)).close()
        taken.append(catch_up(large, held, newest))
    return Line(
        what=f"open a version whose parent the process holds, {changed:,} keys newer",
        values=[1e3 * seconds for seconds in taken],
        bound=100.0,
        at_least=False,
        unit="ms",
        detail="one delta is read",
    )


def catch_up(large: State, held: Version, newest: Version) -> float:
    """Put ``held`` into the cache, then open ``newest``."""
    backend = HeapBackend.open(held.opening(large.folder))
    backend.table(SPEC)
    backend.installed(held.manifest_id)
    backend.close()
    start = time.perf_counter()
    backend = HeapBackend.open(newest.opening(large.folder))
    backend.table(SPEC)
    seconds = time.perf_counter() - start
    backend.installed(newest.manifest_id)
    backend.close()
    return seconds


@benchmark("heap")
@click.option("--keys", default=1_000_000, show_default=True)
@click.option("--changed", default=10_000, show_default=True, help="Keys changed by a commit.")
@click.option("--cycles", default=3, show_default=True, help="Snapshots to wait for, per state.")
def main(*, keys: int, changed: int, cycles: int) -> list[Line]:
    """Measure commit and open of heap states."""
    with tempfile.TemporaryDirectory() as folder:
        small = State.of(f"{folder}/small", keys // 10)
        large = State.of(f"{folder}/large", keys)
        lines = measure_commits(small, large, changed, cycles)
        for _ in range(20):  # a chain of deltas after the snapshot, as usual
            large.commit(large.draw(changed))
        lines.append(measure_opening(large, cycles))
        lines.append(measure_catching_up(large, changed, cycles))
    return lines


if __name__ == "__main__":
    main()
