"""Queries that run on ``transformWithState`` first, and then on a function of ours."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from forebay_spark_runtime import keyed
from forebay_spark_runtime.importing import import_tws
from forebay_state_api import (
    KeyedProcessFunction,
    ValueStateDescriptor,
)
from forebay_state_processor.reading import open_state

SCHEMA = "user string, n long"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
TWS_CONF = {
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
HOUR = timedelta(hours=1)
HOUR_MS = 3_600_000
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)


class InPandas(StatefulProcessor):
    """Runs a processor of rows on Spark 4.0, which passes and takes pandas' DataFrames."""

    def __init__(self, processor):
        self.processor = processor

    def init(self, handle):
        self.processor.init(handle)

    def handleInputRows(self, key, rows, timerValues):
        given = (Row(**row) for frame in rows for row in frame.to_dict("records"))
        return self._frames(self.processor.handleInputRows(key, given, timerValues))

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        return self._frames(self.processor.handleExpiredTimer(key, timerValues, expiredTimerInfo))

    def close(self):
        self.processor.close()

    @staticmethod
    def _frames(rows):
        import pandas as pd

        if found := [row.asDict() for row in rows]:
            yield pd.DataFrame(found)


def transform_with_state(grouped, processor, mode):
    """Run Spark's operator; its form for rows is in Spark 4.1 and newer."""
    if not hasattr(grouped, "transformWithState"):
        processor = InPandas(processor)
        return grouped.transformWithStateInPandas(processor, SCHEMA, "Append", mode)
    return grouped.transformWithState(processor, SCHEMA, "Append", mode)


class Takeover:
    """A query that runs on Spark's operator first and then on ours."""

    def __init__(self, stage, processor, function, *, schema=SCHEMA, key=("user",), **how):
        self.stage = stage
        self.processor, self.function = processor, function
        self.schema, self.key = schema, key
        self.mode = how.pop("mode", "None")
        self.delay = how.pop("delay", None)
        self.how = {"parallelism": 2, **how}
        self.copied = stage.folder / "copied"

    def on_spark(self):
        df = self.stage.source(self.schema)
        if self.delay is not None:
            df = df.withWatermark("at", f"{self.delay.seconds} seconds")
        with_state = transform_with_state(df.groupBy(*self.key), self.processor, self.mode)
        with spark_settings(self.stage.spark, TWS_CONF):
            return self.stage.run(with_state)

    def taken(self, **options):
        given = {"into": str(self.copied), "uid": "counts", **options}
        return import_tws(self.stage.spark, str(self.stage.checkpoint), self.function, **given)

    def ours(self, uid="counts", **where):
        df = keyed(self.stage.source(self.schema), *self.key, uid=uid, **self.how)
        return self.stage.run(df.process(self.function, SCHEMA), **where)

    def goes_on(self):
        """Run the copy; return all rows, those of Spark's operator too."""
        self.ours(checkpoint=self.copied)
        return self.stage.rows(SCHEMA)

    def throughout(self):
        """Return the rows of a query that runs on ours only."""
        folder = self.stage.folder
        self.ours("whole", checkpoint=folder / "whole", output=folder / "whole-out")
        return self.stage.rows(SCHEMA, output=folder / "whole-out")

    def snapshot(self, done):
        return open_state(str(self.stage.state), query=done.query, uid=done.uid)


class spark_settings:
    """Change settings of the session for a while."""

    def __init__(self, spark, settings):
        self.spark, self.settings = spark, settings

    def __enter__(self):
        for name, value in self.settings.items():
            self.spark.conf.set(name, value)

    def __exit__(self, *_):
        for name in self.settings:
            self.spark.conf.unset(name)


class SparkCount(StatefulProcessor):
    def __init__(self, fails_at=None):
        self.fails_at = fails_at

    def init(self, handle):
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key, rows, timerValues):
        n = self.n.get()[0] if self.n.exists() else 0
        for row in rows:
            if row.n == self.fails_at:
                raise ValueError("no such n")
            n += row.n
            yield Row(user=key[0], n=n)
        self.n.update((n,))

    def close(self):
        pass


class Count(KeyedProcessFunction):
    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))

    def process_element(self, row, ctx):
        self.n.update(self.n.value() + row.n)
        yield row.user, self.n.value()


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import it
