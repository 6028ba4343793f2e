"""One run of one job in a separate process: ``python -m benchmarks.one_run``; prints JSON.

`benchmarks.streaming` starts it; run it by hand to examine a single job.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import attrs
import click
from pyspark.sql import SparkSession

from benchmarks.data import SCHEMA, Dataset, default_folder, first_files, materialise
from benchmarks.jobs import JOBS, PARTITIONS, Job


@attrs.frozen(kw_only=True)
class Warm:
    """The times of the warm micro-batches of one run."""

    job: str
    rows: int
    trigger_ms: int
    """Sum of `triggerExecution`."""
    add_batch_ms: int
    """Sum of `addBatch`, which excludes Spark's own log of offsets and commits."""
    events_per_s: float
    """Events divided by `triggerExecution`."""
    phases_ms: dict[str, float]
    """Mean of each phase that Spark reports, per warm micro-batch."""
    per_batch: list[float]
    """Events/s of every micro-batch, including the skipped ones."""


def start_session(job: Job, memory: str) -> SparkSession:
    """Start local[2] for ``job``, with the settings that all jobs share."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    root = str(Path(__file__).resolve().parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    conf = {
        "spark.driver.memory": memory,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(PARTITIONS),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.numRecentProgressUpdates": "200",
        **job.conf,
    }
    builder = SparkSession.builder.master("local[2]").appName(f"benchmark {job.name}")
    for key, value in conf.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def run(job: Job, dataset: Dataset, folder: Path, *, files: int, memory: str) -> list[Any]:
    """Stream the first ``files`` files through ``job``; return the progress of each batch."""
    source = materialise(dataset, folder)
    with tempfile.TemporaryDirectory(prefix="run-", dir=folder) as scratch:
        session = start_session(job, memory)
        progress = stream(session, job, source, Path(scratch), files=files)
        session.stop()
    return progress


def stream(session: SparkSession, job: Job, source: Path, work: Path, *, files: int) -> list[Any]:
    """Stream files of ``source`` through ``job`` with state and checkpoint in ``work``."""
    events_dir = first_files(source, files, work / "events")
    events = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    output = job.build(events.parquet(str(events_dir)), work / "state")
    writer = output.writeStream.format("noop").outputMode(job.output_mode)
    writer = writer.option("checkpointLocation", str(work / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    progress = [json.loads(each.json) for each in query.recentProgress]
    return [each for each in progress if each["numInputRows"] > 0]


def measure(job: Job, progress: list[Any], skip: int) -> Warm:
    """Sum up all but the first ``skip`` micro-batches."""
    warm = progress[skip:]
    rows = sum(each["numInputRows"] for each in warm)
    trigger_ms = sum(each["durationMs"]["triggerExecution"] for each in warm)
    return Warm(
        job=job.name,
        rows=rows,
        trigger_ms=trigger_ms,
        add_batch_ms=sum(each["durationMs"]["addBatch"] for each in warm),
        events_per_s=rows / trigger_ms * 1000,
        phases_ms={
            phase: round(sum(each["durationMs"].get(phase, 0) for each in warm) / len(warm), 1)
            for phase in warm[0]["durationMs"]
        },
        per_batch=[
            round(each["numInputRows"] / each["durationMs"]["triggerExecution"] * 1000)
            for each in progress
        ],
    )


@click.command()
@click.argument("jobs", nargs=-1, required=True, type=click.Choice(list(JOBS)))
@click.option("--keys", default=100_000, show_default=True)
@click.option("--rows", default=83_334, show_default=True, help="Events per micro-batch.")
@click.option("--files", default=12, show_default=True, help="Micro-batches.")
@click.option("--of", "made", type=int, help="Files in the data set [default: files].")
@click.option("--skip", default=2, show_default=True, help="Cold micro-batches.")
@click.option("--data-dir", default=default_folder(), type=click.Path(path_type=Path))
@click.option("--memory", default="4g", show_default=True, help="Heap of the driver's JVM.")
def main(
    *,
    jobs: tuple[str, ...],
    keys: int,
    rows: int,
    files: int,
    made: int | None,
    skip: int,
    data_dir: Path,
    memory: str,
) -> None:
    """Run JOBS one after the other in one JVM; print the times of warm batches as JSON lines."""
    dataset = Dataset(keys=keys, rows_per_file=rows, files=made or files)
    for name in jobs:
        progress = run(JOBS[name], dataset, data_dir, files=files, memory=memory)
        if len(progress) != files:
            message = f"{name}: {len(progress)} micro-batches had rows, {files} were expected"
            raise click.ClickException(message)
        click.echo(json.dumps(attrs.asdict(measure(JOBS[name], progress, skip))))


if __name__ == "__main__":
    main()
