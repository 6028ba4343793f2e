"""A job that names a third party's backend: counts the users in files, and writes the counts.

Its arguments are a folder and the backends to start it with, one after the other, each with more
input.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from forebay_spark_runtime import keyed
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor


class Count(KeyedProcessFunction):
    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))

    async def process_element(self, row, ctx):
        n = await self.n.async_value() + 1
        await self.n.async_update(n)
        yield row.user, n


def main():
    folder = sys.argv[1]
    builder = SparkSession.builder.config("spark.forebay.state.dir", f"{folder}/state")
    spark = builder.config("spark.forebay.shelf.level", "6").getOrCreate()
    for number, backend in enumerate(sys.argv[2:]):
        put(folder, number)
        try:
            sys.stdout.write(f"{backend} found {count(spark, folder, backend)}\n")
        except StreamingQueryException as error:
            sys.stdout.write(f"{backend} failed: {error}\n")


def put(folder, number):
    rows = "".join(f'{{"user": "{user}"}}\n' for user in ("ann", "bob"))
    file = Path(folder) / "input" / f"{number}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(rows)


def count(spark, folder, backend):
    source = spark.readStream.schema("user string").json(f"{folder}/input")
    counted = keyed(source, "user", uid="counts", parallelism=1, backend=backend)
    writer = counted.process(Count(), "user string, n long").writeStream.format("json")
    writer = writer.option("path", f"{folder}/output")
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    files = Path(folder, "output").glob("part-*.json")  # a failed micro-batch wrote none
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return json.dumps(sorted((row["user"], row["n"]) for row in rows))


if __name__ == "__main__":
    main()
