"""Ordered waits under Spark Connect: functions, and scenarios that ``connected.py`` runs."""

from __future__ import annotations

import asyncio

from forebay_spark_runtime import WaitMetrics, current_call, ordered_wait


async def doubled(row, client):
    await asyncio.sleep(0.001)
    return row.n * 2


async def key(row, client):
    return current_call().key


def finish(writer):
    """Run a query to its end, and return the events of its progress."""
    query = writer.start()
    try:
        query.awaitTermination()
        return query.recentProgress
    finally:
        query.stop()


class Scenarios:
    default = ("bounded", "metrics_without_a_directory")
    more = ()
    quiet = ()

    def __init__(self, spark):
        self.spark = spark

    def bounded(self):
        df = ordered_wait(self.spark.range(0, 20, 1, 2).toDF("n"), doubled, "twice long")
        return [tuple(row) for row in df.collect()]

    def metrics_without_a_directory(self):
        try:
            ordered_wait(self.spark.range(1), doubled, "twice long", metrics=WaitMetrics())
        except Exception as error:  # noqa: BLE001 - the scenario records it
            return f"{type(error).__name__}: {error}"
        return "no error"
