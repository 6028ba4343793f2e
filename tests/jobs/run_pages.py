"""Runs the Python code of pages, one after the other in one process, so that they share a session.

Each line of its input names a file and an empty directory to run it in; each line of its output is
JSON: the error, or null.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

await_end = StreamingQuery.awaitTermination


def await_rows(query, timeout=None):
    """Wait for the end of a query; with a timeout, wait only until it has had rows."""
    if timeout is None:
        return await_end(query)
    while not any(progress["numInputRows"] for progress in query.recentProgress):
        if await_end(query, 0.2):
            return True
    return False


def run(file, folder):
    os.chdir(folder)
    spark = SparkSession.getActiveSession()
    if spark is not None:  # a JVM cannot change its directory; its file systems can
        spark_files(spark).setWorkingDirectory(spark._jvm.org.apache.hadoop.fs.Path(folder))
    try:
        runpy.run_path(file, run_name="__main__")
    finally:
        spark = SparkSession.getActiveSession()
        for query in spark.streams.active if spark is not None else ():
            query.stop()


def spark_files(spark):
    return spark._jvm.org.apache.hadoop.fs.FileSystem.get(spark._jsc.hadoopConfiguration())


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of pages and of the JVM
    StreamingQuery.awaitTermination = await_rows
    for line in sys.stdin:
        said = None
        try:
            run(*json.loads(line))
        except BaseException:  # noqa: BLE001 - any error is the page's
            said = traceback.format_exc()
        answers.write(f"{json.dumps(said)}\n")
        answers.flush()


if __name__ == "__main__":
    main()
