"""A job: calls the service at ``url`` for rows from files of a `Stage`, and writes the answers.

Ends when all rows have answers. With ``carry``, late rows are carried over; then it ends when as
many rows as ``carry`` have been written, and adds input until then.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import aiohttp
from pyspark.sql import SparkSession

from forebay_spark_runtime import current_call, ordered_wait


def asking(url, pids):
    async def ask(row, client):
        leave_pid(pids)
        headers = {"Idempotency-Key": current_call().key}
        async with client.get(f"{url}/{row.id}", headers=headers) as response:
            response.raise_for_status()
            return await response.text()

    return ask


def leave_pid(pids):
    Path(pids, str(os.getpid())).touch()


def run(folder, url, carry=None):
    spark = SparkSession.builder.getOrCreate()
    folder = Path(folder)
    reader = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
    carrying = {"pending": "carry", "uid": "ask", "parallelism": 2, "carry_after": 0.1}
    carrying["state_dir"] = str(folder / "state")
    answered = ordered_wait(
        reader.json(str(folder / "input")),
        asking(url, folder / "pids"),
        "answer string",
        resources=aiohttp.ClientSession,
        capacity=4,
        name="ask",
        **({} if carry is None else carrying),
    )
    writer = answered.writeStream.format("json").option("path", str(folder / "output"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    if carry is None:
        writer.trigger(availableNow=True).start().awaitTermination()
    else:
        run_until(spark, writer.start(), folder, carry)


def run_until(spark, query, folder, rows):
    """Add input, because carried rows are only written in a micro-batch with new input."""
    while True:
        query.processAllAvailable()
        out = spark.read.schema("id long").json(str(folder / "output"))
        if out.where("id >= 0").count() == rows:
            break
        more = folder / "input" / f"{time.time_ns()}.json"
        aside = folder / "more.json"
        aside.write_text('{"id": -1}\n', encoding="utf-8")
        aside.rename(more)
    query.stop()
