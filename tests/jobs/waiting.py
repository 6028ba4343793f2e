"""A driver of its own: asks a service about rows from files, into files.

Its one argument is a JSON object: the ``folder`` of a `Stage` and the ``url`` of the service. Ends
when what is there has been asked.
"""

from __future__ import annotations

import json
import os
import sys
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


def main():
    told = json.loads(sys.argv[1])
    folder = Path(told["folder"])
    spark = SparkSession.builder.master(told.get("master", "local[2]")).getOrCreate()
    reader = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
    answered = ordered_wait(
        reader.json(str(folder / "input")),
        asking(told["url"], folder / "pids"),
        "answer string",
        resources=aiohttp.ClientSession,
        capacity=4,
        name="ask",
    )
    writer = answered.writeStream.format("json").option("path", str(folder / "output"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()
