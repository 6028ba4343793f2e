"""The engine alone, without Spark: one read and one write per record, compared with a bare loop.

Records that also await a turn of asyncio's loop are compared with those that do not, and records
that fail alone (``on_error="column"``) with those that fail the micro-batch. For these two the time
includes the check of rows and the Arrow batches of the output, as on Spark: rows that the check has
seen are quicker to write. They take turns after each Arrow batch of the input, in a process of
their own for each form, as a worker runs one function: where engines of other forms have run, the
interpreter is slower at what all share, and the ratio is smaller.

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
from multiprocessing import get_context
from typing import Any, Final

import attrs
import click
import pyarrow as pa

from benchmarks.data import Event, rows_in_memory
from benchmarks.engine_drive import EngineDrive
from benchmarks.functions import AwaitTurn, CountChained, CountCoroutine, CountSync
from benchmarks.report import Line, benchmark
from forebay_engine.isolation.failed_record import ErrorRows
from forebay_spark_runtime.arrow.described_rows import DescribedRowWriter
from forebay_spark_runtime.arrow.describing_columns import FAILED_RECORD
from forebay_spark_runtime.arrow.row_checks import RowTests
from forebay_spark_runtime.arrow.rows_out import RowWriter
from forebay_spark_runtime.arrow.spark_types import arrow_schema
from forebay_spark_runtime.keyed_operator.task_output import OUTPUT_ROWS
from forebay_spark_runtime.worker_process.garbage_collection import begin_task

KEYS: Final = (100_000, 1_000)
ROWS: Final = 83_334
"""Rows of one micro-batch, as on Spark."""
BOUNDS: Final = {"sync": 2.5, "coroutine": 4.0, "chained": 12.0}
"""Form of the function → the largest allowed multiple of the bare loop's time."""


ALONE: Final = 1.12
"""The largest allowed multiple of a form's own time with ``on_error="column"``, rows written."""
LOOP_AWAIT_US: Final = 10.0
"""The most µs of CPU that an await of the loop may cost, with many records in flight."""
LOOP_AWAIT_HOT_US: Final = 35.0
"""The same with one record in flight: each has a turn of the loop to itself."""
TOGETHER: Final = 1_000
"""Records that wait for the loop together, on a key for each row."""
LOOP_AWAIT_ROWS: Final = 20_000
INPUT_ROWS: Final = 10_000
"""Rows of an Arrow batch of the input: Spark's default."""
OUTPUT: Final = pa.schema(
    [("user", pa.string()), ("amount", pa.int64()), ("cnt", pa.int64()), ("total", pa.int64())]
)
"""The columns of the functions' rows."""
FUNCTIONS: Final = {"sync": CountSync, "coroutine": CountCoroutine, "chained": CountChained}


@attrs.frozen
class RowBatch:
    """A micro-batch; the keys and key groups arrive as columns, as they do on Spark."""

    rows: Sequence[Event]
    keys: Sequence[str]
    groups: Sequence[int]


Drive = Callable[[RowBatch], Sequence[Any]]
Writer = RowWriter | DescribedRowWriter


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
        engines = {
            form: opened.enter_context(EngineDrive(function(), f"memory://bench-{form}"))
            for form, function in FUNCTIONS.items()
        }
        drives: dict[str, Drive] = {"bare": bare_loop()}
        drives |= {form: partial(_drive, engine, None) for form, engine in engines.items()}
        batches = _cut(rows, engines["sync"], ROWS)
        _warm_and_check(drives, batches)
        took = in_turn(drives, pairs, [batches])
    return [_line(keys, form, took, len(rows)) for form in BOUNDS]


def compare_alone(keys: int, form: str, pairs: int, count: int) -> Line:
    """Time a form with and without ``on_error="column"`` in turn, over warm state."""
    rows = rows_in_memory(keys, ROWS * count)
    writer = RowWriter(OUTPUT, function=form, time_zone="UTC")
    columns = pa.schema([*OUTPUT, ("error", pa.struct(list(arrow_schema(FAILED_RECORD))))])
    alone_writer = DescribedRowWriter(writer, columns)
    error_rows = ErrorRows(checked_rows=partial(RowTests, writer, OUTPUT))
    function = FUNCTIONS[form]
    with (
        EngineDrive(function(), "memory://bench-written") as written,
        EngineDrive(function(), "memory://bench-alone", error_rows=error_rows) as alone,
    ):
        drives: dict[str, Drive] = {
            "written": partial(_drive, written, writer),
            "alone": partial(_drive, alone, alone_writer),
        }
        batches = _cut(rows, written, INPUT_ROWS)
        _warm_and_check({"bare": bare_loop()} | drives, batches)
        took = in_turn(drives, pairs, [[batch] for batch in batches])
    return _line_alone(keys, form, took, len(rows))


def _cut(rows: Sequence[Event], engine: EngineDrive, size: int) -> list[RowBatch]:
    parts = [rows[start : start + size] for start in range(0, len(rows), size)]
    return [RowBatch(part, *engine.columns_of(part)) for part in parts]


def in_turn(
    drives: Mapping[str, Drive], pairs: int, turns: Sequence[Sequence[RowBatch]]
) -> dict[str, list[float]]:
    """Return the CPU times of each drive, one for each pair; the drives take turns in it.

    Collections are rare meanwhile, and skip what is loaded, as on Spark.
    """
    took: dict[str, list[float]] = {name: [0.0] * pairs for name in drives}
    order = [*drives]
    begin_task()
    try:
        for pair in range(pairs):
            for turn in turns:
                for name in order:
                    took[name][pair] += seconds(drives[name], turn)
                order.reverse()
    finally:
        gc.unfreeze()
    return took


def _drive(engine: EngineDrive, writer: Writer | None, batch: RowBatch) -> Sequence[Any]:
    """Return the output's rows, or its Arrow batches if there is a writer."""
    rows = engine(batch.rows, batch.keys, batch.groups)
    return rows if writer is None else writer.batches(rows, OUTPUT_ROWS)


def _warm_and_check(drives: Mapping[str, Drive], batches: Sequence[RowBatch]) -> None:
    """Run all forms on the same rows, so that every key exists, and compare their output."""
    for batch in batches:
        expected = sorted(drives["bare"](batch))
        for form in drives.keys() - {"bare"}:
            if sorted(_output_rows(drives[form](batch))) != expected:
                raise click.ClickException(f"{form} and the bare loop disagree")


def _output_rows(output: Sequence[Any]) -> Sequence[Any]:
    """Return the rows of an output, without the column for errors."""
    if output and isinstance(output[0], pa.RecordBatch):
        tables = [batch.select(OUTPUT.names).to_pylist() for batch in output]
        return [tuple(row.values()) for table in tables for row in table]
    return output


def _line_alone(keys: int, form: str, took: Mapping[str, Sequence[float]], rows: int) -> Line:
    names = ("alone", "written")
    pairs = zip(*(took[name] for name in names), strict=True)
    alone, together = (_per_row_us(took[name], rows) for name in names)
    return Line(
        what=f'engine and output, {keys:,} keys: {form} with on_error="column" ÷ without, time',
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


def loop_await(pairs: int, *, hot: bool) -> Line:
    """Time an await of a future, on about as many keys as rows or on one key."""
    rows = rows_in_memory(1_000_000, LOOP_AWAIT_ROWS)
    if hot:
        rows = [row._replace(user="hot") for row in rows]
    more: list[float] = []
    with (
        EngineDrive(AwaitTurn(1 if hot else TOGETHER), "memory://bench-turn") as turn,
        EngineDrive(CountCoroutine(), "memory://bench-none") as none,
    ):
        batch = RowBatch(rows, *none.columns_of(rows))
        drives: dict[str, Drive] = {
            "turn": partial(_drive, turn, None),
            "bare": partial(_drive, none, None),
        }
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
        bound=LOOP_AWAIT_HOT_US if hot else LOOP_AWAIT_US,
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
    alone = [(keys, form, pairs, batches) for keys in KEYS for form in FUNCTIONS]
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        lines += pool.starmap(compare_alone, alone, chunksize=1)
    return [*lines, *(loop_await(pairs, hot=hot) for hot in (False, True))]


if __name__ == "__main__":
    main()
