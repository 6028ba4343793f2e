"""A job: reminds users of orders with timers in a namespace each; some rows and timers fail.

Ends when all input is processed.
"""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from forebay_spark_runtime import keyed
from forebay_state_api import KeyedProcessFunction, ListStateDescriptor, ValueStateDescriptor

ORDERS = "n long, user string, at timestamp, order_id string, after long, what string"
SCHEMA = "user string, order_id string, at timestamp, rows long, reminded long, seen array<long>"
ERROR = "error struct<type: string, method: string, key: string, row: string, timer: timestamp>"
MINUTE = timedelta(minutes=1)
AGAIN = "again"
"""The namespace of the timer that every reminder sets two minutes after itself."""

ROWS = ValueStateDescriptor("rows", int, default=0)
REMINDED = ValueStateDescriptor("reminded", int, default=0)
SEEN = ListStateDescriptor("seen", int)
"""In each order's namespace: the numbers of its rows since the last reminder."""


def fails(order, at):
    """Whether the timer of an order fails: every third minute that of ``fragile``."""
    return order == "fragile" and at.minute % 3 == 0


class Reminders(KeyedProcessFunction):
    """Sets a timer in the order's namespace for each row, and emits a row for each row and timer.

    A row with ``what = "only"`` replaces the order's timers; one with ``"fail"`` does so too, sets
    another one in another namespace, and fails. A micro-batch may be held: it waits as long as a
    file exists.
    """

    def __init__(self, pause, hold=None, held_batch=None):
        self.pause = pause
        self.hold = hold
        self.held_batch = held_batch

    def open(self, context):
        self.rows = context.get_state(ROWS)
        self.reminded = context.get_state(REMINDED)
        self.seen = context.get_list_state(SEEN)

    async def process_element(self, row, ctx):
        self._wait(ctx.batch_id)
        rows = await self.rows.async_value() + 1
        await self.rows.async_update(rows)
        reminded = await self.reminded.async_value()
        ctx.set_current_namespace(row.order_id)
        await self.seen.async_add(rows)
        at = row.at + row.after * MINUTE
        if row.what == "add":
            ctx.timers.register_event_time(at)
        else:
            await ctx.timers.async_replace_event_time(at)
        seen = [one async for one in await self.seen.async_get()]
        yield ctx.current_key, row.order_id, row.at, rows, reminded, seen
        if row.what == "fail":
            ctx.set_current_namespace(AGAIN)
            ctx.timers.register_event_time(at)
            raise ValueError(row.order_id)

    async def on_timer(self, at, ctx):
        self._wait(ctx.batch_id)
        order = ctx.current_namespace
        seen = [one async for one in await self.seen.async_get()]
        await self.seen.async_clear()
        ctx.set_current_namespace(None)
        await self.reminded.async_update(await self.reminded.async_value() + 1)
        if order != AGAIN:
            ctx.set_current_namespace(AGAIN)
            ctx.timers.register_event_time(at + 2 * MINUTE)
        if fails(order, at):
            raise LookupError(order)
        yield ctx.current_key, order, at, None, None, seen

    def _wait(self, batch_id):
        time.sleep(self.pause)
        while batch_id == self.held_batch and self.hold.exists():
            time.sleep(0.01)


def reminders(source, *, backend, parallelism, state_dir, pause=0.0, **held):
    """Return the DataFrame of rows and reminders, with a column for errors."""
    return keyed(
        source,
        "user",
        uid="reminders",
        parallelism=parallelism,
        state_dir=state_dir,
        backend=backend,
        event_time="at",
        order_by="n",
        on_error="column",
    ).process(Reminders(pause, **held), SCHEMA)


def run(folder, **options):
    spark = SparkSession.builder.getOrCreate()
    folder = Path(folder)
    reader = spark.readStream.schema(ORDERS).option("maxFilesPerTrigger", 1)
    found = reminders(reader.json(str(folder / "input")), state_dir=folder / "state", **options)
    writer = found.writeStream.format("json").option("path", str(folder / "output"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
