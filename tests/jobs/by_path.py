"""A job that is started by the path of its Python, with an ordered wait and a keyed function."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

from forebay_spark_runtime import keyed, ordered_wait


async def python_of(row, client):
    return sys.executable


spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
answered = ordered_wait(spark.range(1), python_of, "python string")
counted = keyed(answered, "id", uid="u", parallelism=1).process(
    lambda row, ctx: [(row.python, sys.executable)], "asked string, counted string"
)
assert counted.collect() == [(sys.executable, sys.executable)], counted.collect()
spark.stop()
