"""The engine alone, without Spark: one read and one write per record, compared with a bare loop.

Records that also await a turn of asyncio's loop are compared with those that do not.

``python -m benchmarks.engine``. Rows are named tuples in memory, state is on the heap backend,
nothing is committed.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import attrs
import click

from benchmarks.data import Event, rows_in_memory
from benchmarks.engine_drive import EngineDrive
from benchmarks.functions import AwaitTurn, CountChained, CountCoroutine, CountSync
from benchmarks.report import Line, benchmark
from forebay_spark_runtime.worker_process.garbage_collection import begin_task
from forebay_state_api.engine.failed_record import ErrorRows

KEYS: Final = (100_000, 1_000)
ROWS: Final = 83_334
"""Rows of one micro-batch, as on Spark."""
BOUNDS: Final = {"sync": 2.5, "coroutine": 4.0, "chained": 12.0}
"""Form of the function → the largest allowed multiple of the bare loop's time."""


ALONE: Final = 1.12
"""The largest allowed multiple of a form's own time with ``on_error="column"``."""
FOREIGN_US: Final = 10.0
"""The most µs of CPU that an await of something foreign may cost, with many records in flight."""
FOREIGN_HOT_US: Final = 35.0
"""The same with one record in flight: each has a turn of the loop to itself."""
TOGETHER: Final = 1_000
"""Records that wait for the loop together, on a key for each row."""
FOREIGN_ROWS: Final = 20_000
FUNCTIONS: Final = {"sync": CountSync, "coroutine": CountCoroutine, "chained": CountChained}


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
    """Return the CPU time of all batches; the output of each is dropped when the next is done."""
    started = time.process_time()
    for batch in batches:
        drive(batch)
    return time.process_time() - started


def compare(keys: int, pairs: int, count: int) -> list[Line]:
    """Time the bare loop and all forms in turn, over warm state."""
    rows = rows_in_memory(keys, ROWS * count)
    with ExitStack() as opened:
        engines = {}
        for form, function in FUNCTIONS.items():
            for name, error_rows in ((form, None), (f"{form} alone", ErrorRows())):
                drive = EngineDrive(function(), f"memory://bench-{name}", error_rows=error_rows)
                engines[name] = opened.enter_context(drive)
        parts = [rows[start : start + ROWS] for start in range(0, len(rows), ROWS)]
        batches = [RowBatch(part, *engines["sync"].columns_of(part)) for part in parts]
        drives: dict[str, Drive] = {"bare": bare_loop()}
        drives |= {name: partial(_drive, engine) for name, engine in engines.items()}
        took: dict[str, list[float]] = {name: [] for name in drives}
        _warm_and_check(drives, batches)
        for _ in range(pairs):
            for name, drive in drives.items():
                took[name].append(seconds(drive, batches))
    lines = [_line(keys, form, took, len(rows)) for form in BOUNDS]
    return lines + [_line_alone(keys, form, took, len(rows)) for form in BOUNDS]


def _drive(engine: EngineDrive, batch: RowBatch) -> list[Any]:
    return engine(batch.rows, batch.keys, batch.groups)


def _warm_and_check(drives: Mapping[str, Drive], batches: Sequence[RowBatch]) -> None:
    """Run all forms on the same rows, so that every key exists, and compare their output."""
    for batch in batches:
        expected = sorted(drives["bare"](batch))
        for form in drives.keys() - {"bare"}:
            if sorted(map(tuple, drives[form](batch))) != expected:
                raise click.ClickException(f"{form} and the bare loop disagree")


def _line_alone(keys: int, form: str, took: Mapping[str, Sequence[float]], rows: int) -> Line:
    pairs = zip(took[f"{form} alone"], took[form], strict=True)
    alone, together = (_per_row_us(took[name], rows) for name in (f"{form} alone", form))
    return Line(
        what=f'engine alone, {keys:,} keys: {form} with on_error="column" ÷ without, time',
        values=[ours / without for ours, without in pairs],
        bound=ALONE,
        at_least=False,
        detail=f"{alone:.2f} / {together:.2f} µs a record",
    )


def _per_row_us(took: Sequence[float], rows: int) -> float:
    return statistics.median(took) / rows * 1e6


def _line(keys: int, form: str, took: Mapping[str, Sequence[float]], rows: int) -> Line:
    ours, bare = (_per_row_us(took[name], rows) for name in (form, "bare"))
    return Line(
        what=f"engine alone, {keys:,} keys: {form} ÷ bare loop, time",
        values=[mine / its for mine, its in zip(took[form], took["bare"], strict=True)],
        bound=BOUNDS[form],
        at_least=False,
        detail=f"{ours:.2f} / {bare:.2f} µs a record",
    )


def foreign_await(pairs: int, *, hot: bool) -> Line:
    """Time an await of a future, on about as many keys as rows or on one key."""
    rows = rows_in_memory(1_000_000, FOREIGN_ROWS)
    if hot:
        rows = [row._replace(user="hot") for row in rows]
    more: list[float] = []
    with (
        EngineDrive(AwaitTurn(1 if hot else TOGETHER), "memory://bench-turn") as turn,
        EngineDrive(CountCoroutine(), "memory://bench-none") as none,
    ):
        batch = RowBatch(rows, *none.columns_of(rows))
        drives: dict[str, Drive] = {"turn": partial(_drive, turn), "bare": partial(_drive, none)}
        if sorted(drives["turn"](batch)) != sorted(drives["bare"](batch)):
            raise click.ClickException("awaiting the loop changes the output")
        begin_task()  # which makes collections rare, and skips what is loaded, as on Spark
        for _ in range(pairs):
            took = {name: seconds(drive, [batch]) for name, drive in drives.items()}
            more.append((took["turn"] - took["bare"]) / len(rows) * 1e6)
        gc.unfreeze()
    what = "one key" if hot else "a key for each row"
    return Line(
        what=f"engine alone, {what}: an await of a future that the loop completes, CPU µs more",
        values=more,
        bound=FOREIGN_HOT_US if hot else FOREIGN_US,
        at_least=False,
        unit="µs",
        detail=f"{1 if hot else TOGETHER:,} waiting together",
    )


@benchmark("engine")
@click.option("--pairs", default=5, show_default=True, help="Pairs of runs; each gives a ratio.")
@click.option("--batches", default=6, show_default=True, help="Micro-batches of 83,334 rows each.")
@click.option("--quick", is_flag=True, help="A check only: one pair of one batch.")
def main(*, pairs: int, batches: int, quick: bool) -> list[Line]:
    """Measure the engine against the bare loop."""
    if quick:
        pairs, batches = 1, 1
    lines = [line for keys in KEYS for line in compare(keys, pairs, batches)]
    return [*lines, *(foreign_await(pairs, hot=hot) for hot in (False, True))]


if __name__ == "__main__":
    main()
