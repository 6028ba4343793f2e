"""A client of Spark Connect that counts, where client or server lack Forebay's packages.

Its arguments are an empty folder and the side that has them; the error is printed as JSON.
"""

from __future__ import annotations

import json
import os
import sys


def count(spark, folder):
    from count import SCHEMA, Count

    from forebay_spark_runtime import keyed

    rows = spark.createDataFrame([("ann",), ("bob",)], "user string")
    counted = keyed(rows, "user", uid="counts", query="q", state_dir=folder, parallelism=1)
    counted.process(Count(), SCHEMA).collect()


class Hidden:
    """As if the client did not have the packages."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0].startswith("forebay_"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def main(folder, side):
    from pyspark.sql import SparkSession

    os.environ.pop("PYSPARK_SUBMIT_ARGS", None)
    spark = SparkSession.builder.remote("local[2]").getOrCreate()
    if side == "server":
        sys.meta_path.insert(0, Hidden())
    try:
        count(spark, folder)
        error = ""
    except Exception as caught:  # noqa: BLE001 - whatever it is, it is shown
        error = f"{type(caught).__name__}: {caught}"
    sys.stdout.write("FOUND " + json.dumps({"error": error}) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
