"""Restarts with other parallelism: ``python -m benchmarks.lsm_restart`` (a minute).

Four subtasks commit a state of a million keys on the lsm backend, on local files, without Spark.
Each restart is a new run in a fresh process, which opens all subtasks one after another: the same
number as before, and in turn fewer and more, whose key-group ranges span the files of several old
subtasks. Its time is the sum of the subtasks' times until each has processed a record. The
process's imports, which take longer, are not included.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any, Final

import click

from benchmarks.lsm_state import key_of, value_of
from benchmarks.memory import in_fresh_process
from benchmarks.report import Line, benchmark
from forebay_backend_lsm import LsmBackend
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor
from forebay_state_api.keys import key_group_of, subtask_of
from forebay_state_api.storage.opening import open_storage
from forebay_testing import KeyedJob

MAX_PARALLELISM: Final = 128
BEFORE: Final = 4
AFTER: Final = (3, 6)
VERSIONS: Final = 10
"""Micro-batches that make the state. Each adds a part of the keys, so that subtasks have several
files."""
BOUND: Final = 2.0
SMALL: Final = 1_000
"""Keys of another state, with which a fresh process imports its modules."""

Row = tuple[bytes, int]
"""A row: key and number."""


class Fill(KeyedProcessFunction[bytes, Row, Any]):
    """Writes the value of a key."""

    def open(self, context: Any) -> None:
        self.value = context.get_state(ValueStateDescriptor("s", bytes))

    def process_element(self, row: Row, ctx: Any) -> Any:
        self.value.update(value_of(row[1]))


class Look(Fill):
    """Emits the value of a key."""

    def process_element(self, row: Row, ctx: Any) -> Any:
        return [self.value.value()]


def job_on(folder: str, parallelism: int) -> KeyedJob:
    """Make a new run on the state in ``folder``."""
    return KeyedJob(
        LsmBackend,
        open_storage(folder),
        parallelism=parallelism,
        max_parallelism=MAX_PARALLELISM,
        key_type=bytes,
    )


def fill(folder: str, keys: int) -> None:
    """Make the versions."""
    job = job_on(folder, BEFORE)
    for version in range(VERSIONS):
        job.run(Fill(), [(key_of(number), number) for number in range(version, keys, VERSIONS)])


def restart_in_process(folder: str, parallelism: int, keys: int) -> float:
    """Run `restart` in a fresh process, which has nothing of the state cached."""
    restart(f"{folder}/small", BEFORE, SMALL)
    return restart(f"{folder}/large", parallelism, keys)


def restart(folder: str, parallelism: int, keys: int) -> float:
    """Return the total seconds until each subtask of a new run has processed a record.

    Nothing is committed.
    """
    job = job_on(folder, parallelism)
    job.batch_id = VERSIONS
    return sum(
        first_record(job, subtask, number)
        for subtask, number in enumerate(one_key_each(parallelism, keys))
    )


def one_key_each(parallelism: int, keys: int) -> Iterator[int]:
    """Return, for each subtask, the number of a key that belongs to it."""
    for subtask in range(parallelism):
        yield next(
            number
            for number in range(keys // 2, keys)
            if subtask_of(_group_of(number), parallelism, MAX_PARALLELISM) == subtask
        )


def _group_of(number: int) -> int:
    return key_group_of(key_of(number), MAX_PARALLELISM)


def first_record(job: KeyedJob, subtask: int, number: int) -> float:
    """Return the seconds from the beginning of the version until a key was read."""
    key, group = key_of(number), _group_of(number)
    start = time.perf_counter()
    with job.subtask(Look(), subtask) as running:
        running.process([(key, number)], [key], [group])
        running.drain()
        seconds = time.perf_counter() - start
        if running.take_rows() != [value_of(number)]:
            raise RuntimeError("the opened version does not hold what was committed")
    return seconds


def measure(folder: str, keys: int, pairs: int) -> list[Line]:
    """Return one line for each changed parallelism."""
    in_fresh_process(fill, f"{folder}/small", SMALL)
    in_fresh_process(fill, f"{folder}/large", keys)
    taken: dict[int, list[float]] = {parallelism: [] for parallelism in (BEFORE, *AFTER)}
    for number in range(pairs):
        for parallelism in taken if number % 2 == 0 else reversed(taken):
            seconds = in_fresh_process(restart_in_process, folder, parallelism, keys)
            taken[parallelism].append(seconds)
    return [_line(keys, after, taken) for after in AFTER]


def _line(keys: int, after: int, taken: dict[int, list[float]]) -> Line:
    same, other = (1e3 * statistics.median(taken[number]) for number in (BEFORE, after))
    return Line(
        what=f"restart of {keys:,} keys: {BEFORE} subtasks → {after} ÷ {BEFORE} → {BEFORE}, time",
        values=[a / b for a, b in zip(taken[after], taken[BEFORE], strict=True)],
        bound=BOUND,
        at_least=False,
        detail=f"{other:.0f} / {same:.0f} ms, all subtasks",
    )


@benchmark("lsm-restart")
@click.option("--keys", default=1_000_000, show_default=True)
@click.option("--pairs", default=5, show_default=True, help="Pairs of runs; each gives a ratio.")
def main(*, keys: int, pairs: int) -> list[Line]:
    """Measure restarts with other parallelism."""
    with tempfile.TemporaryDirectory() as folder:
        return measure(folder, keys, pairs)


if __name__ == "__main__":
    main()
