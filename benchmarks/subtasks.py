"""Cost of a subtask by the number of subtasks: ``python -m benchmarks.subtasks`` (two minutes).

The harness runs micro-batches of five rows per subtask at 16 and at 1,024 subtasks: the protocol
and a backend on local files, one subtask after another. With ``--spark``, micro-batches of 100 rows
also run on Spark, compared with a dict that is not durable and ``transformWithState``, which takes
half an hour more.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import attrs
import click
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.memory import in_fresh_process
from benchmarks.report import Line, benchmark
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor

FEW: Final = 16
MANY: Final = 1_024
GROUPS: Final = 4_096
ROWS_EACH: Final = 5
MEASURED: Final = 2_048
"""Approximate number of subtask-batches for one figure."""
WARM: Final = 4

BATCHES: Final = {2: 30, 16: 20, 128: 14, 512: 8}
"""Number of subtasks → micro-batches of a job."""
SHORT: Final = 6
"""Micro-batches of `transformWithState`, which takes too long for more."""
COLD: Final = 3
ROWS: Final = 100
USERS: Final = 1_000
SPARK_BOUNDS: Final = {2: 1.05, 16: 1.05, 128: 1.10, 512: 1.15}
"""Number of subtasks → the largest allowed multiple of a dict's time."""


class Row(NamedTuple):
    """A row of the harness."""

    k: str


class Count(KeyedProcessFunction[Any, Any, Any]):
    """Counts rows: one read and one write for each row."""

    def open(self, context: Any) -> None:
        """Declare the count."""
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))

    def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        """Count a row."""
        n = self.n.value() + 1
        self.n.update(n)
        yield row.k, n


def harness_ms(backend: str, subtasks: int) -> float:
    """Return the CPU time of one subtask of a warm micro-batch, in ms."""
    from forebay_testing import FunctionHarness

    rows = [Row(str(number)) for number in range(ROWS_EACH * subtasks)]
    repeats = max(1, MEASURED // subtasks)
    with (
        tempfile.TemporaryDirectory() as folder,
        FunctionHarness(
            Count(),
            key_by="k",
            parallelism=subtasks,
            max_parallelism=GROUPS,
            state_dir=folder,
            backend=backend,
        ) as harness,
    ):
        for _ in range(WARM):
            harness.process(rows)
        started = time.process_time()
        for _ in range(repeats):
            harness.process(rows)
        return (time.process_time() - started) * 1_000 / repeats / subtasks


def flatness(backend: str, rounds: int) -> Line:
    """Compare many subtasks with few, in turn, each in a fresh process."""
    pairs = []
    for number in range(rounds):
        order = (FEW, MANY) if number % 2 else (MANY, FEW)
        found = {n: in_fresh_process(harness_ms, backend, n) for n in order}
        pairs.append((found[MANY], found[FEW]))
    many, few = (statistics.median(side) for side in zip(*pairs, strict=True))
    return Line(
        what=f"CPU of a subtask, {backend}: {MANY:,} subtasks ÷ {FEW}",
        values=[one / other for one, other in pairs],
        bound=1.3,
        at_least=False,
        detail=f"{many:.1f} / {few:.1f} ms",
    )


def on_spark(job: str, subtasks: int) -> float:
    """Run one job in a separate process; return the median `addBatch` of warm batches, in ms."""
    command = [sys.executable, "-m", "benchmarks.subtasks", "--job", job]
    done = subprocess.run(
        [*command, "--subtasks", str(subtasks)], stdout=subprocess.PIPE, check=True, text=True
    )
    return float(json.loads(done.stdout.splitlines()[-1]))


def small_batches(subtasks: int, rounds: int) -> Line:
    """Compare ours with a dict and with transformWithState."""
    runs: dict[str, list[float]] = {"dict": [], "ours": []}
    for number in range(rounds):
        for job in sorted(runs, reverse=bool(number % 2)):
            runs[job].append(on_spark(job, subtasks))
    medians = {job: statistics.median(found) for job, found in runs.items()}
    with_state = on_spark("tws", subtasks)
    return Line(
        what=f"micro-batches of {ROWS} rows, {subtasks} subtasks: ours ÷ dict",
        values=[a / b for a, b in zip(runs["ours"], runs["dict"], strict=True)],
        bound=SPARK_BOUNDS[subtasks],
        at_least=False,
        detail=f"{medians['ours']:,.0f} / {medians['dict']:,.0f} ms; "
        f"transformWithState {with_state:,.0f} ms",
    )


def write_files(folder: Path, batches: int) -> None:
    """Write a file of `ROWS` rows for each micro-batch."""
    folder.mkdir()
    for batch in range(batches):
        keys = [f"u{(batch * 37 + row) % USERS}" for row in range(ROWS)]
        path = folder / f"{batch:03d}.parquet"
        pq.write_table(pa.table({"k": keys}), path)
        os.utime(path, (1_700_000_000 + batch, 1_700_000_000 + batch))


def _count_in_dict(batches: Any) -> Iterator[pa.RecordBatch]:
    seen: dict[str, int] = {}
    for batch in batches:
        keys = batch.column("k").to_pylist()
        counts = []
        for key in keys:
            seen[key] = seen.get(key, 0) + 1
            counts.append(seen[key])
        yield pa.RecordBatch.from_pydict({"k": keys, "n": counts})


def _output(job: str, events: Any, subtasks: int, state_dir: Path) -> Any:
    schema = "k string, n long"
    if job == "dict":
        return events.repartition(subtasks, "k").mapInArrow(_count_in_dict, schema)
    if job == "tws":
        from benchmarks.jobs import CountTransformWithState

        renamed = events.selectExpr("k as user", "1L as amount")
        output = "user string, amount long, cnt long, total long"
        processor = CountTransformWithState()
        return renamed.groupBy("user").transformWithState(processor, output, "Append", "None")
    from forebay_spark_runtime import keyed

    stream = keyed(
        events,
        "k",
        uid="c",
        parallelism=subtasks,
        max_parallelism=max(128, subtasks),
        state_dir=state_dir,
    )
    return stream.process(Count(), schema)


def run_job(job: str, subtasks: int) -> float:
    """Run one job on Spark; return the median of the warm micro-batches in ms."""
    from benchmarks.jobs import JOBS
    from benchmarks.one_run import start_session

    with tempfile.TemporaryDirectory() as scratch:
        work = Path(scratch)
        write_files(work / "events", SHORT if job == "tws" else BATCHES[subtasks])
        conf = {"spark.sql.shuffle.partitions": str(subtasks)}
        like = JOBS["tws" if job == "tws" else "dict"]
        session = start_session(attrs.evolve(like, conf={**like.conf, **conf}), "2g")
        events = session.readStream.schema("k string").option("maxFilesPerTrigger", 1)
        output = _output(job, events.parquet(str(work / "events")), subtasks, work / "state")
        writer = output.writeStream.format("noop").outputMode("append")
        writer = writer.option("checkpointLocation", str(work / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        progress = [json.loads(each.json) for each in query.recentProgress]
        session.stop()
    took = [each["durationMs"]["addBatch"] for each in progress if each["numInputRows"]]
    return statistics.median(took[COLD:])


@benchmark("subtasks")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True)
@click.option("--spark", "with_spark", is_flag=True, help="Also run micro-batches on Spark.")
@click.option("--job", type=click.Choice(["ours", "dict", "tws"]), help="One run; print its ms.")
@click.option("--subtasks", type=click.Choice(list(BATCHES)), default=128, show_default=True)
def main(*, rounds: int, with_spark: bool, job: str | None, subtasks: int) -> list[Line] | None:
    """Measure the cost of a subtask by the number of subtasks."""
    if job is not None:
        click.echo(json.dumps(run_job(job, subtasks)))
        return None
    lines = [flatness(backend, rounds) for backend in ("heap", "lsm")]
    if with_spark:
        lines += [small_batches(number, rounds) for number in SPARK_BOUNDS]
    return lines


if __name__ == "__main__":
    main()
