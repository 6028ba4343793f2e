"""A job that knows the operator by its name only; prints the output as JSON."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from forebay_state_api.plugins import plugins

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
names = spark.createDataFrame([("ann",), ("catherine",)], "name string").coalesce(1)
lengths = plugins().operator("lengths").apply(names, "name", capacity=2)
sys.stdout.write(f"found {json.dumps([list(row) for row in lengths.collect()])}\n")
spark.stop()
