"""Counts rows of a stream behind an ordered wait, in two runs; the arguments are settings of Spark.

The first argument is a folder. The job checks its own output.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from pyspark.sql import SparkSession

from forebay_spark_runtime import keyed, ordered_wait
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor

USERS = 50
ROWS = 3_000
FILES = 3
OUTPUT = "user string, n long, double long, seen long"


async def doubled(row, client):
    return 2 * row.n


class Count(KeyedProcessFunction):
    def open(self, context):
        self.seen = context.get_state(ValueStateDescriptor("seen", int, default=0))

    def process_element(self, row, ctx):
        seen = self.seen.value() + 1
        self.seen.update(seen)
        yield row.user, row.n, row.double, seen


folder, settings = Path(sys.argv[1]), dict(one.split("=", 1) for one in sys.argv[2:])
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
for key, value in settings.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
(folder / "in").mkdir()
given = [(f"user{n % USERS}", n) for n in range(FILES * ROWS)]
for number in range(FILES):
    part = given[number * ROWS : (number + 1) * ROWS]
    lines = [json.dumps({"user": user, "n": n}) for user, n in part]
    (folder / "in" / f"{number}.json").write_text("\n".join(lines))
    if number == 0:
        continue  # the first run has two micro-batches
    events = spark.readStream.schema("user string, n long").option("maxFilesPerTrigger", 1)
    answered = ordered_wait(events.json(f"{folder}/in"), doubled, "double long")
    operator = keyed(answered, "user", uid="counts", parallelism=2, state_dir=f"{folder}/state")
    writer = operator.process(Count(), OUTPUT).writeStream.format("json")
    writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.trigger(availableNow=True).start(f"{folder}/out")
    query.awaitTermination()
rows = spark.read.schema(OUTPUT).json(f"{folder}/out").collect()
assert sorted((row.user, row.n, row.double) for row in rows) == sorted(
    (user, n, 2 * n) for user, n in given
)
seen = Counter((row.user, row.seen) for row in rows)
each = FILES * ROWS // USERS
assert seen == Counter((f"user{user}", n + 1) for user in range(USERS) for n in range(each))
spark.stop()
