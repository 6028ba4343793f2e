"""Ordered waits under Spark Connect: scenarios that ``connected.py`` runs."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

from forebay_spark_runtime import WaitMetrics, current_call, ordered_wait


async def doubled(row, client):
    await asyncio.sleep(0.001)
    return row.id * 2


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
    names = ("bounded", "stream", "foreach_batch", "metrics_without_a_directory")

    def __init__(self, spark, folder):
        self.spark = spark
        self.folder = Path(folder)
        (self.folder / "input").mkdir(parents=True)
        for batch in range(3):
            lines = [json.dumps({"id": batch * 5 + n}) for n in range(5)]
            file = self.folder / "input" / f"{batch}.json"
            file.write_text("\n".join(lines))
            os.utime(file, (1_700_000_000 + batch,) * 2)  # taken in this order

    def source(self):
        reader = self.spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
        return reader.json(str(self.folder / "input"))

    def run(self, writer, name):
        writer = writer.option("checkpointLocation", str(self.folder / f"{name} checkpoint"))
        finish(writer.trigger(availableNow=True))

    def rows(self, name, schema):
        found = self.spark.read.schema(schema).json(str(self.folder / name)).collect()
        return sorted(tuple(row) for row in found)

    def bounded(self):
        df = ordered_wait(self.spark.range(0, 20, 1, 2), doubled, "n long")
        return [tuple(row) for row in df.collect()]

    def stream(self):
        metrics = WaitMetrics(directory=self.folder / "metrics")
        waited = ordered_wait(self.source(), doubled, "n long", metrics=metrics)
        sink = waited.writeStream.format("json").option("path", str(self.folder / "stream"))
        self.run(sink, "stream")
        counted = [[report.batch_id, report.counts.rows] for report in metrics.batches()]
        return [self.rows("stream", "id long, n long"), counted]

    def foreach_batch(self):
        output = str(self.folder / "batches")

        def each(df, batch_id):
            waited = ordered_wait(df, key, "key string", query="nightly", batch_id=batch_id)
            waited.write.mode("append").json(output)

        self.run(self.source().writeStream.foreachBatch(each), "batches")
        return self.rows("batches", "id long, key string")

    def metrics_without_a_directory(self):
        try:
            ordered_wait(self.spark.range(1), doubled, "n long", metrics=WaitMetrics())
        except Exception as error:  # noqa: BLE001 - the scenario records it
            return f"{type(error).__name__}: {error}"
        return "no error"
