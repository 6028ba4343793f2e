"""A driver that counts users on executors, in a stream of two batches and a restart of it.

Its argument is an empty folder. It prints the counts and where the executors ran as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from forebay_spark_runtime import keyed
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor

SCHEMA = "user string, n long, where string"
BATCHES = [["ann", "bob", "cy", "ann"], ["bob", "ann", "dee"], ["ann", "eve", "cy"]]


class Count(KeyedProcessFunction):
    def open(self, context):
        import forebay_state_api

        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))
        self.where = f"{sys.executable} {forebay_state_api.__file__}"

    async def process_element(self, row, ctx):
        n = await self.n.async_value() + 1
        await self.n.async_update(n)
        yield row.user, n, self.where


def put(folder, number):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{number}.json"
    path.write_text("".join(json.dumps({"user": user}) + "\n" for user in BATCHES[number]))
    os.utime(path, (1_700_000_000 + number,) * 2)


def run(spark, folder, parallelism, backend):
    reader = spark.readStream.schema("user string").option("maxFilesPerTrigger", 1)
    counted = keyed(
        reader.json(str(folder / "input")),
        "user",
        uid="counts",
        parallelism=parallelism,
        backend=backend,
        state_dir=folder / "state",
    ).process(Count(), SCHEMA)
    writer = counted.writeStream.format("json").option("path", str(folder / "output"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    if query.exception() is not None:
        raise query.exception()


def main(folder, backend="heap"):
    folder = Path(folder)
    spark = SparkSession.builder.getOrCreate()
    put(folder / "input", 0)
    put(folder / "input", 1)
    run(spark, folder, 2, backend)
    put(folder / "input", 2)
    run(spark, folder, 3, backend)
    rows = spark.read.schema(SCHEMA).json(str(folder / "output")).collect()
    found = {
        "counts": sorted([row.user, row.n] for row in rows),
        "where": sorted({row.where for row in rows}),
    }
    sys.stdout.write("FOUND " + json.dumps(found) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
