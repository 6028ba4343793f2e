"""A job: counts rows of users from files of a `Stage` into files, with failures on request.

With ``rules`` it has a broadcast input, of which every micro-batch has one row; ``n`` numbers them.

Ends when all input is counted.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from pyspark.sql import SparkSession

from forebay_spark_runtime import broadcast, keyed
from forebay_state_api import (
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)

SCHEMA = "user string, n long"


class Count(KeyedProcessFunction):
    """Counts in two kinds of state; fails on request, on the first attempt of a batch."""

    def __init__(self, trouble, gate, pause):
        self.trouble = trouble
        self.gate = gate
        self.pause = pause

    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))
        self.all = context.get_list_state(ListStateDescriptor("all", int))

    async def process_element(self, row, ctx):
        self._trouble(row, ctx)
        n = await self.n.async_value() + 1
        await self.n.async_update(n)
        await self.all.async_add(n)
        kept = [one async for one in await self.all.async_get()]
        assert kept == list(range(1, n + 1)), kept
        yield row.user, n

    def _trouble(self, row, ctx):
        time.sleep(self.pause)
        if self.gate is not None and ctx.batch_id == self.gate["batch"]:
            while not Path(self.gate["path"]).exists():
                time.sleep(0.05)
        if ctx.attempt_number == 0 and row.user == "user19":
            kind = self.trouble.get(str(ctx.batch_id))
            if kind == "raise":
                message = f"trouble in batch {ctx.batch_id}"
                raise ValueError(message)
            if kind == "exit":
                os._exit(17)


class CountWithRules(KeyedBroadcastProcessFunction):
    """Counts as ``count`` does; every subtask has got every broadcast row once.

    On request a worker dies after a broadcast row, on the first attempt of a batch.
    """

    def __init__(self, count, trouble=None):
        self.count = count
        self.trouble = trouble or {}

    def open(self, context):
        self.count.open(context)
        self.rules = context.get_broadcast_state(MapStateDescriptor("rules", str, int))

    async def process_element(self, row, ctx):
        rules = await self.rules.async_get("rows")
        # A driver that dies between Spark's log of the source and that of offsets leaves a batch
        # with two files.
        assert ctx.batch_id + 1 <= rules, (ctx.batch_id, rules)
        async for counted in self.count.process_element(row, ctx):
            yield counted

    async def process_broadcast_element(self, row, ctx):
        rows = await self.rules.async_get("rows") or 0
        assert row.n == rows, (row.n, rows)
        await self.rules.async_put("rows", rows + 1)
        if ctx.attempt_number == 0 and self.trouble.get(str(ctx.batch_id)) == "exit after rule":
            os._exit(17)


def run(folder, parallelism=2, trouble=None, gate=None, pause=0.0, rules=False, **names):
    spark = SparkSession.builder.getOrCreate()
    folder = Path(folder)
    reader = spark.readStream.schema("user string").option("maxFilesPerTrigger", 1)
    users = keyed(
        reader.json(str(folder / "input")),
        "user",
        uid="counts",
        parallelism=parallelism,
        state_dir=folder / "state",
    )
    function = Count(trouble or {}, gate, pause)
    if rules:
        rows = spark.readStream.schema("n long").option("maxFilesPerTrigger", 1)
        users = users.connect(broadcast(rows.json(str(folder / "rules")), order_by="n"))
        function = CountWithRules(function, trouble)
    counted = users.process(function, SCHEMA)
    writer = counted.writeStream.format("json")
    writer = writer.option("path", str(folder / names.get("output", "output")))
    checkpoint = str(folder / names.get("checkpoint", "checkpoint"))
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
