"""Runs the Python code of pages, one after the other in one process, so that they share a session.

Each line of its input names a file and an empty directory to run it in.
"""

from __future__ import annotations

import os
import runpy

from answering import answer
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


if __name__ == "__main__":
    StreamingQuery.awaitTermination = await_rows
    answer(lambda asked: run(*asked))
