"""The cost of Spark's plan of a keyed operator: ``python -m benchmarks.plan_costs``.

Two parts, in one session. In batch mode, the CPU time per row of plans in which each feature of an
operator is added to a bare ``mapInArrow`` behind the same exchange; the functions of all pass Arrow
on. On a stream, an operator that does nothing to its rows (`benchmarks.nothing_done`) and the bare
``mapInArrow``, in turn: wall time and CPU time of the process tree.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import click
import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark user knows
from pyspark.sql.types import StructField, StructType
from rich.console import Console

from benchmarks.data import SCHEMA, Dataset, default_folder, first_files, materialise
from benchmarks.jobs import JOBS, PARTITIONS
from benchmarks.machine import ForeignLoad
from benchmarks.one_run import start_session
from benchmarks.processes import cpu_s_of_tree
from benchmarks.report import Line, Result, benchmark, table
from forebay_spark_runtime import keyed
from forebay_spark_runtime.arrow.figures_column import COLUMN, TYPE
from forebay_spark_runtime.arrow.spark_types import arrow_schema
from forebay_spark_runtime.driver.observed_figures import observed
from forebay_spark_runtime.keyed_operator.key_columns import key_columns
from forebay_spark_runtime.keyed_operator.plan import BATCH_MS, HiddenColumns, Input, plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH: Final = Dataset(keys=100_000, rows_per_file=500_000, files=5)
STREAMS: Final = {
    "83k-100k": (Dataset(keys=100_000, rows_per_file=83_334, files=12), 0.80),
    "500k-100k": (BATCH, 0.85),
}
"""Name → data, and the least part of the bare operator's speed."""
COLD: Final = 2
"""Micro-batches of a stream that do not count."""
MANY: Final = 20
"""Columns of the widest input."""
ERROR: Final = "struct<type:string,message:string,method:string,key:string,row:string>"
KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "string": ("user",),
    "long": ("cast(substr(user, 6) as long)",),
    "double": ("cast(substr(user, 6) as double)",),
    "decimal(20,2)": ("cast(substr(user, 6) as decimal(20,2))",),
    "timestamp": ("timestamp_seconds(cast(substr(user, 6) as long))",),
    "date": ("date_from_unix_date(cast(substr(user, 6) as int) % 20000)",),
    "string and long": ("user", "cast(substr(user, 6) as long)"),
}
"""Type of the key → its columns, in SQL."""


@attrs.frozen
class Pass:
    """Passes the columns of the user on, without hidden ones, and adds those that are null."""

    added: Mapping[str, Any] = attrs.field(factory=dict)
    """Name → Arrow type."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """``mapInArrow`` calls this."""
        for batch in batches:
            names = [
                name for name in batch.schema.names if not name.startswith(HiddenColumns.PREFIX)
            ]
            given = [batch.column(name) for name in names] or [batch.column(0)]
            nulls = [pa.nulls(batch.num_rows, kind) for kind in self.added.values()]
            yield pa.RecordBatch.from_arrays(
                [*given, *nulls], [*(names or ["packed"]), *self.added]
            )


def by_key(events: DataFrame, kind: str, more: int = 0) -> tuple[DataFrame, list[str]]:
    """Return the events with a key of a type, and ``more`` columns; and the key's names."""
    names = [f"key{number}" for number in range(len(KEYS[kind]))]
    keys = [f"{sql} as {name}" for sql, name in zip(KEYS[kind], names, strict=True)]
    wide = [f"amount + {number} as more{number}" for number in range(more)]
    return events.selectExpr(*keys, "amount", "seq", *wide), names


def bare(events: DataFrame, kind: str, more: int = 0) -> DataFrame:
    """Return the floor: Spark's own exchange by the key."""
    df, names = by_key(events, kind, more)
    return df.repartition(PARTITIONS, *names).mapInArrow(Pass(), df.schema)


def routed(*sides: tuple[DataFrame, list[str] | None]) -> DataFrame:
    """Return what an operator's workers read; a side without key names is broadcast."""
    first, names = sides[0]
    options = keyed(first, *names or (), uid="bench", parallelism=PARTITIONS).options
    inputs = [
        Input(df, names and key_columns(df.schema, names, "bench"), ()) for df, names in sides
    ]
    return plan(inputs, options)


def ours(events: DataFrame, kind: str, more: int = 0) -> DataFrame:
    """Return the operator's input side, and an output without more columns."""
    df, names = by_key(events, kind, more)
    return routed((df, names)).mapInArrow(Pass(), df.schema)


def with_columns(events: DataFrame, added: str, kinds: Mapping[str, Any]) -> DataFrame:
    """Return the operator with more columns in its output."""
    df, names = by_key(events, "string")
    ddl = f"key0 string, amount long, seq long, {added}"
    return routed((df, names)).mapInArrow(Pass(kinds), ddl)


def with_figures(events: DataFrame) -> DataFrame:
    """Return the operator with the figures of a stream."""
    kind = arrow_schema(StructType([StructField(COLUMN, TYPE)])).field(0).type
    sent = with_columns(events, f"{COLUMN} {TYPE.simpleString()}", {COLUMN: kind})
    return observed(sent, "bench")


def with_error_column(events: DataFrame) -> DataFrame:
    """Return the operator with an error column, in which nothing is."""
    fields = [(name, pa.string()) for name in ("type", "message", "method", "key", "row")]
    return with_columns(events, f"error {ERROR}", {"error": pa.struct(fields)})


def with_time(events: DataFrame) -> DataFrame:
    """Return the operator with the micro-batch's time in each row, as on a stream."""
    df, names = by_key(events, "string")
    timed = df.withColumn("amount", F.expr(f"amount | {BATCH_MS}"))
    return routed((timed, names)).mapInArrow(Pass(), df.schema)


def two_inputs(events: DataFrame, *, broadcast: bool) -> DataFrame:
    """Return an operator with a second input, which has one row."""
    df, names = by_key(events, "string")
    second = df.sparkSession.range(1).selectExpr("'user1' as key0", "id as amount", "id as seq")
    both = routed((df, names), (second, None if broadcast else names))
    return both.mapInArrow(Pass(), "packed struct<key0:string,amount:long,seq:long>")


FEATURES: Final[Mapping[str, tuple[Callable[..., DataFrame], Callable[..., DataFrame]]]] = {
    **{
        f"routing, a key of {kind}": (partial(ours, kind=kind), partial(bare, kind=kind))
        for kind in KEYS
    },
    f"routing, a key of string, {MANY} columns more": (
        partial(ours, kind="string", more=MANY),
        partial(bare, kind="string", more=MANY),
    ),
    "the time of the micro-batch, on a stream": (with_time, partial(ours, kind="string")),
    "figures in progress events": (with_figures, partial(ours, kind="string")),
    'error column, on_error="column"': (with_error_column, partial(ours, kind="string")),
    "a second keyed input": (partial(two_inputs, broadcast=False), partial(ours, kind="string")),
    "a broadcast input": (partial(two_inputs, broadcast=True), partial(ours, kind="string")),
}
"""Feature → the plan with it, and the plan without it."""


def per_row(session: SparkSession, folder: Path, rounds: int) -> str:
    """Return the table of the features' CPU time per row."""
    events = session.read.parquet(str(materialise(BATCH, folder)))
    more: dict[str, list[float]] = defaultdict(list)
    without: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds + 1):
        for what, (with_it, without_it) in FEATURES.items():
            pair = (with_it, without_it)[:: 1 if number % 2 else -1]
            spent = {make: _cpu_us(make(events)) / BATCH.rows for make in pair}
            if number:  # the first round is cold
                more[what].append(spent[with_it] - spent[without_it])
                without[what].append(spent[without_it])
        _say(f"features, round {number}/{rounds}")
    rows = [
        [
            what,
            f"{statistics.median(values):.2f}",
            f"{min(values):.2f} to {max(values):.2f}",
            f"{statistics.median(without[what]):.2f}",
        ]
        for what, values in more.items()
    ]
    return table(rows, ["feature", "CPU µs per row", "spread", "without it"])


def _cpu_us(df: DataFrame) -> float:
    before = cpu_s_of_tree()
    df.write.format("noop").mode("overwrite").save()
    return (cpu_s_of_tree() - before) * 1e6


def _say(text: str) -> None:
    Console(stderr=True).print(text, highlight=False)


@attrs.frozen
class Warm:
    """The warm micro-batches of one query."""

    rows: int
    wall_s: float
    cpu_s: float


def streamed(session: SparkSession, job: str, dataset: Dataset, folder: Path) -> Warm:
    """Run a job over all files of a data set."""
    source = materialise(dataset, folder)
    with tempfile.TemporaryDirectory(prefix="run-", dir=folder) as scratch:
        work = Path(scratch)
        events = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        files = first_files(source, dataset.files, work / "events")
        output = JOBS[job].build(events.parquet(str(files)), work / "state")
        writer = output.writeStream.format("noop").option("checkpointLocation", f"{work}/c")
        query = writer.trigger(availableNow=True).start()
        began = None
        while not query.awaitTermination(0.05):
            newest = query.lastProgress
            if began is None and newest is not None and newest["batchId"] >= COLD - 1:
                began = cpu_s_of_tree()
        if began is None:
            raise click.ClickException(f"{job} ended before its warm micro-batches were seen")
        spent = cpu_s_of_tree() - began
        progress = [json.loads(one.json) for one in query.recentProgress]
    warm = [one for one in progress if one["numInputRows"]][COLD:]
    wall_ms = sum(one["durationMs"]["triggerExecution"] for one in warm)
    return Warm(sum(one["numInputRows"] for one in warm), wall_ms / 1e3, spent)


def beside_bare(session: SparkSession, name: str, folder: Path, rounds: int) -> list[Line]:
    """Compare the operator that does nothing with the bare one, on a stream."""
    dataset, least = STREAMS[name]
    jobs = ("nothing-done", "floor-arrow")
    found: dict[str, list[Warm]] = defaultdict(list)
    for number in range(rounds + 1):
        for job in jobs[:: 1 if number % 2 else -1]:
            warm = streamed(session, job, dataset, folder)
            if number:
                found[job].append(warm)
        _say(f"{name}, round {number}/{rounds}")
    ours_, bare_ = (found[job] for job in jobs)
    lines = []
    for what, take in (("time", "wall_s"), ("CPU time", "cpu_s")):
        pairs = [(getattr(a, take), getattr(b, take)) for a, b in zip(ours_, bare_, strict=True)]
        per = [
            statistics.median(getattr(one, take) / one.rows * 1e6 for one in runs)
            for runs in (ours_, bare_)
        ]
        lines.append(
            Line(
                what=f"{name}: bare mapInArrow ÷ nothing done in keyed, {what}",
                values=[other / one for one, other in pairs],
                bound=least,
                at_least=True,
                detail=f"{per[0]:.2f} / {per[1]:.2f} µs a row",
            )
        )
    return lines


@benchmark("plan-costs")
@click.option("--rounds", default=5, show_default=True, help="Pairs of runs.")
@click.option("--no-features", is_flag=True, help="Only the streams.")
@click.option("--no-streams", is_flag=True, help="Only the features.")
@click.option("--data-dir", default=default_folder(), type=click.Path(path_type=Path))
def main(*, rounds: int, no_features: bool, no_streams: bool, data_dir: Path) -> Result:
    """Measure the plan of a keyed operator."""
    session = start_session(JOBS["ours-sync"], "3g")
    lines: list[Line] = []
    notes = []
    try:
        with ForeignLoad() as load:
            if not no_features:
                notes.append(per_row(session, data_dir, rounds))
            if not no_streams:
                for name in STREAMS:
                    lines += beside_bare(session, name, data_dir, rounds)
    finally:
        session.stop()
    if load.cores is not None:
        notes.append(f"Others used {load.cores:.2f} cores meanwhile.")
    return Result(lines=lines, notes=notes)


if __name__ == "__main__":
    main()
