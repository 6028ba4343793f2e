"""The ordered wait on a stream with an HTTP server on loopback: one run in its own process.

``python -m benchmarks.wait_spark``; prints JSON. `benchmarks.ordered_wait` starts it.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import click
import pyarrow as pa
import pyarrow.parquet as pq
from aiohttp import web
from pyspark.sql import SparkSession

from forebay_spark_runtime import WaitMetrics, ordered_wait


async def _serve(latency_s: float, told: Connection) -> None:
    async def answer(request: web.Request) -> web.Response:
        await asyncio.sleep(latency_s)
        return web.Response(text=f"answer to {request.match_info['row']}")

    app = web.Application()
    app.router.add_get("/{row}", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    told.send(runner.addresses[0][1])
    await asyncio.Event().wait()


def serve(latency_s: float, told: Connection) -> None:
    """Answer requests until the process is killed."""
    asyncio.run(_serve(latency_s, told))


def asking(port: int) -> Any:
    """Return the function that calls the server."""

    async def ask(row: Any, client: Any) -> str:
        async with client.get(f"http://127.0.0.1:{port}/{row.n}") as response:
            return str(await response.text())

    return ask


def session() -> SparkSession:
    """Start ``local[2]`` with little log output."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("benchmark ordered_wait")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
    }.items():
        builder = builder.config(key, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    return made


def stream(port: int, batches: int, rows: int, capacity: int) -> list[dict[str, float]]:
    """Make the calls of all rows; return Spark's time and the work's time of each micro-batch."""
    spark = session()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "input").mkdir()
        for batch in range(batches):
            table = pa.table({"n": range(batch * rows, (batch + 1) * rows)})
            pq.write_table(table, folder / "input" / f"{batch:04d}.parquet")
        metrics = WaitMetrics()
        reader = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1)
        answered = ordered_wait(
            reader.parquet(str(folder / "input")),
            asking(port),
            "answer string",
            capacity=capacity,
            resources=aiohttp.ClientSession,
            metrics=metrics,
        )
        writer = answered.writeStream.format("noop").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
        query.awaitTermination()
        progress = [json.loads(each.json) for each in query.recentProgress]
    took = {each["batchId"]: each["durationMs"]["triggerExecution"] / 1000 for each in progress}
    found = [
        {
            "rows": report.counts.rows,
            "trigger_s": took[report.batch_id],
            "work_s": report.counts.work_s,
            "p50_s": report.p50_s,
            "p99_s": report.p99_s,
        }
        for report in metrics.batches()
    ]
    spark.stop()
    return found


@click.command()
@click.option("--batches", default=5, show_default=True, help="Micro-batches, one partition each.")
@click.option("--rows", default=5_000, show_default=True, help="Rows of a micro-batch.")
@click.option("--capacity", default=100, show_default=True)
@click.option("--latency", default=0.1, show_default=True, help="Seconds that an answer takes.")
def main(*, batches: int, rows: int, capacity: int, latency: float) -> None:
    """Run one stream; print the times of each micro-batch."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=serve, args=(latency, there), daemon=True)
    server.start()
    try:
        click.echo(json.dumps(stream(here.recv(), batches, rows, capacity)))
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
