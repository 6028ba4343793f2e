"""The engine alone, without Spark: one read and one write per record, compared with a bare loop.

``python -m benchmarks.engine``. Rows are named tuples in memory, state is on the heap backend,
nothing is committed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs
import click

from benchmarks.data import Event, rows_in_memory
from benchmarks.engine_drive import EngineDrive
from benchmarks.functions import CountChained, CountCoroutine, CountSync
from benchmarks.report import Line, benchmark

KEYS: Final = (100_000, 1_000)
ROWS: Final = 83_334
"""Rows of one micro-batch, as on Spark."""
BOUNDS: Final = {"sync": 2.5, "coroutine": 4.0, "chained": 12.0}
"""Form of the function → the largest allowed multiple of the bare loop's time."""


@attrs.frozen
class RowBatch:
    """A micro-batch; the keys and key groups arrive as columns, as they do on Spark."""

    rows: Sequence[Event]
    keys: Sequence[str]
    groups: Sequence[int]


Drive = Callable[[RowBatch], list[Any]]


def bare_loop() -> Drive:
    """Do the functions' work by hand: a loop over the rows, a dict, a list of output rows."""
    state: dict[str, tuple[int, int]] = {}

    def drive(batch: RowBatch) -> list[Any]:
        output: list[Any] = []
        for row in batch.rows:
            count, total = state.get(row.user) or (0, 0)
            count += 1
            total += row.amount
            state[row.user] = (count, total)
            output.append((row.user, row.amount, count, total))
        return output

    return drive


def seconds(drive: Drive, batches: Sequence[RowBatch]) -> float:
    """Run all batches; the output of each is dropped when the next batch is done."""
    started = time.perf_counter()
    for batch in batches:
        drive(batch)
    return time.perf_counter() - started


def compare(keys: int, pairs: int, count: int) -> list[Line]:
    """Time the bare loop and all forms in turn, over warm state."""
    rows = rows_in_memory(keys, ROWS * count)
    took: dict[str, list[float]] = {"bare": [], **{form: [] for form in BOUNDS}}
    with (
        EngineDrive(CountSync(), "memory://bench-sync") as sync,
        EngineDrive(CountCoroutine(), "memory://bench-coroutine") as coroutine,
        EngineDrive(CountChained(), "memory://bench-chained") as chained,
    ):
        parts = [rows[start : start + ROWS] for start in range(0, len(rows), ROWS)]
        batches = [RowBatch(part, *sync.columns_of(part)) for part in parts]
        drives = {
            "bare": bare_loop(),
            "sync": lambda batch: sync(batch.rows, batch.keys, batch.groups),
            "coroutine": lambda batch: coroutine(batch.rows, batch.keys, batch.groups),
            "chained": lambda batch: chained(batch.rows, batch.keys, batch.groups),
        }
        _warm_and_check(drives, batches)
        for _ in range(pairs):
            for form, drive in drives.items():
                took[form].append(seconds(drive, batches))
    return [_line(keys, form, took, len(rows)) for form in BOUNDS]


def _warm_and_check(drives: Mapping[str, Drive], batches: Sequence[RowBatch]) -> None:
    """Run all forms on the same rows, so that every key exists, and compare their output."""
    for batch in batches:
        expected = sorted(drives["bare"](batch))
        for form in BOUNDS:
            if sorted(map(tuple, drives[form](batch))) != expected:
                raise click.ClickException(f"{form} and the bare loop disagree")


def _line(keys: int, form: str, took: Mapping[str, Sequence[float]], rows: int) -> Line:
    def per_row_us(name: str) -> float:
        return statistics.median(took[name]) / rows * 1e6

    return Line(
        what=f"engine alone, {keys:,} keys: {form} ÷ bare loop, time",
        values=[ours / bare for ours, bare in zip(took[form], took["bare"], strict=True)],
        bound=BOUNDS[form],
        at_least=False,
        detail=f"{per_row_us(form):.2f} / {per_row_us('bare'):.2f} µs a record",
    )


@benchmark("engine")
@click.option("--pairs", default=5, show_default=True, help="Pairs of runs; each gives a ratio.")
@click.option("--batches", default=6, show_default=True, help="Micro-batches of 83,334 rows each.")
@click.option("--quick", is_flag=True, help="A check only: one pair of one batch.")
def main(*, pairs: int, batches: int, quick: bool) -> list[Line]:
    """Measure the engine against the bare loop."""
    if quick:
        pairs, batches = 1, 1
    return [line for keys in KEYS for line in compare(keys, pairs, batches)]


if __name__ == "__main__":
    main()
