"""A driver that examines its executors, once for each difference planted in one of them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from forebay_spark_runtime import doctor


def main(state_dir, *kinds):
    spark = SparkSession.builder.getOrCreate()
    for kind in kinds:
        Path(os.environ["PLANT"]).write_text("" if kind == "nothing" else kind)
        found = doctor(spark, state_dir)
        names = [process.name for process in found.processes]
        told = {"kind": kind, "places": names, "problems": found.problems, "notes": found.notes}
        sys.stdout.write(json.dumps({**told, "text": str(found)}) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
