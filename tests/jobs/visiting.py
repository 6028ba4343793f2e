"""A job: follows visits with timers of both kinds and with states that expire.

Ends when all input is processed, or with ticks never.
"""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta
from pathlib import Path

from pyspark.sql import SparkSession

from forebay_spark_runtime import keyed
from forebay_state_api import (
    CleanupIncrementally,
    KeyedBatchFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    SortedMapStateDescriptor,
    StateTtlConfig,
    TimeDomain,
    ValueStateDescriptor,
)

VISITS = "user string, at timestamp, after_ms long, forget boolean"
SCHEMA = (
    "user string, step long, batch long, now timestamp, what string, at timestamp, "
    "recent long, marks array<long>, places string, tail array<long>"
)
LATENESS = timedelta(seconds=2)
QUIET = timedelta(milliseconds=1_500)
"""The time after a visit at which its event-time timer is due."""
AGAIN = timedelta(milliseconds=400)
"""The time after every third processing-time timer at which another one is due."""
RECENT_TTL = timedelta(milliseconds=800)
MARKS_TTL = timedelta(milliseconds=1_200)
PLACES_TTL = timedelta(seconds=4)
PLACES = 4

STEP = ValueStateDescriptor("step", int)
DUE = ValueStateDescriptor("due", datetime)
RECENT = ValueStateDescriptor("recent", int, ttl=StateTtlConfig(RECENT_TTL))
MARKS = ListStateDescriptor(
    "marks",
    int,
    ttl=StateTtlConfig(MARKS_TTL, cleanup=(CleanupIncrementally(2, every_record=True),)),
)
PLACES_SEEN = MapStateDescriptor("places", str, int, ttl=StateTtlConfig(PLACES_TTL))
TAIL = SortedMapStateDescriptor("tail", int, int)
"""The last `LONGEST` steps."""
LONGEST = 3


class Visits(KeyedProcessFunction):
    """Emits a row with the state of the user for each step, which is a visit or a timer.

    A visit registers a timer of either kind; one that is to forget deletes the processing-time
    timer of the visit before. A micro-batch may be held: it waits as long as a file exists.
    """

    def __init__(self, pause, hold=None, held_batch=None):
        self.pause = pause
        self.hold = hold
        self.held_batch = held_batch

    def open(self, context):
        self.step = context.get_state(STEP)
        self.due = context.get_state(DUE)
        self.recent = context.get_state(RECENT)
        self.marks = context.get_list_state(MARKS)
        self.places = context.get_map_state(PLACES_SEEN)
        self.tail = context.get_sorted_map_state(TAIL)

    async def process_element(self, row, ctx):
        before = await self.due.async_value()
        if row.forget and before is not None:
            ctx.timers.delete_processing_time(before)
        due = ctx.timers.processing_time + timedelta(milliseconds=row.after_ms)
        ctx.timers.register_processing_time(due)
        ctx.timers.register_event_time(row.at + QUIET)
        await self.due.async_update(due)
        yield await self._summary("visit", row.at, ctx)

    async def on_timer(self, at, ctx):
        summary = await self._summary(ctx.timers.domain.value, at, ctx)
        if ctx.timers.domain is TimeDomain.PROCESSING_TIME and summary["step"] % 3 == 0:
            ctx.timers.register_processing_time(at + AGAIN)
        yield summary

    def _wait(self, batch_id):
        time.sleep(self.pause)
        while batch_id == self.held_batch and self.hold.exists():
            time.sleep(0.01)

    async def _summary(self, what, at, ctx):
        self._wait(ctx.batch_id)
        step = (await self.step.async_value() or 0) + 1
        recent = (await self.recent.async_value() or 0) + 1
        await self.step.async_update(step)
        await self.recent.async_update(recent)
        await self.marks.async_add(step)
        await self.places.async_put(f"place {step % PLACES}", step)
        await self.tail.async_put(step, step)
        await self.tail.async_remove_range(stop=step - LONGEST + 1)
        return {
            "user": ctx.current_key,
            "step": step,
            "batch": ctx.batch_id,
            "now": ctx.timers.processing_time,
            "what": what,
            "at": at,
            "recent": recent,
            "marks": [one async for one in await self.marks.async_get()],
            "places": json.dumps(sorted([one async for one in await self.places.async_items()])),
            "tail": [one async for one in await self.tail.async_keys()],
        }


class VisitsByColumns(Visits, KeyedBatchFunction):
    """Makes the same steps for many users in one call; a restart may change from one to the other.

    Of the timers that the visits of a slice register and delete, the last change of each counts.
    """

    def process_batch(self, rows, ctx):
        g, at = ctx.groups, rows["at"].to_pylist()
        due, after, forgets = (
            one.to_pylist() if hasattr(one, "to_pylist") else list(one)
            for one in (self.due.get_many(g), rows["after_ms"], rows["forget"])
        )
        changes = {}
        for row, key in enumerate(g.index.to_pylist()):
            if forgets[row] and due[key] is not None:
                changes[key, due[key]] = row, False
            due[key] = ctx.processing_time + timedelta(milliseconds=after[row])
            changes[key, due[key]] = row, True
        self.due.put_many(g, due)
        made, gone = [None] * len(at), [None] * len(at)
        for (_, time_of), (row, is_made) in changes.items():
            (made if is_made else gone)[row] = time_of
        ctx.timers.register_processing_time_many(g, made)
        ctx.timers.delete_processing_time_many(g, gone)
        ctx.timers.register_event_time_many(g, [one + QUIET for one in at])
        return self._steps("visit", at, ctx)

    def on_timers(self, at, ctx):
        at = at.to_pylist()
        made = self._steps(ctx.timers.domain.value, at, ctx)
        if ctx.timers.domain is TimeDomain.PROCESSING_TIME:
            again = [step % 3 == 0 for step in made["step"].to_pylist()]
            times = [one + AGAIN for one in at]
            ctx.timers.register_processing_time_many(ctx.groups, times, where=again)
        return made

    def _steps(self, what, at, ctx):
        """Make a step for each row; states are read and written once."""
        self._wait(ctx.batch_id)
        g = ctx.groups
        steps = g.cumcount(self.step.get_many(g))
        recent = g.cumcount(self.recent.get_many(g))
        marks, tails = self.marks.get_many(g).to_pylist(), self.tail.keys_many(g).to_pylist()
        places = [dict(one) for one in self.places.items_many(g).to_pylist()]
        names = [f"place {step % PLACES}" for step in steps.to_pylist()]
        self.step.put_many(g, g.last(steps))
        self.recent.put_many(g, g.last(recent))
        self.marks.add_many(g, steps)
        self.places.put_many(g, names, steps)
        self.tail.put_many(g, steps, steps)
        self.tail.remove_range_many(
            g, None, [one - LONGEST + 1 for one in g.last(steps).to_pylist()]
        )
        seen = []
        for key, step, name in zip(g.index.to_pylist(), steps.to_pylist(), names, strict=True):
            marks[key] = [*marks[key], step]
            tails[key] = [*tails[key], step][-LONGEST:]
            places[key] |= {name: step}
            seen.append((marks[key], json.dumps(sorted(places[key].items())), tails[key]))
        marks, places, tails = zip(*seen, strict=True)
        return {
            "user": g.spread(g.keys["user"]),
            "step": steps,
            "batch": [ctx.batch_id] * len(at),
            "now": [ctx.processing_time] * len(at),
            "what": [what] * len(at),
            "at": at,
            "recent": recent,
            "marks": list(marks),
            "places": list(places),
            "tail": list(tails),
        }


def visits(
    source, *, backend, parallelism, state_dir, pause=0.0, ticks=None, by_columns=False, **held
):
    """Return the DataFrame of the users' steps; ``by_columns`` is whether slices make them."""
    stream = keyed(
        source,
        "user",
        uid="visits",
        parallelism=parallelism,
        state_dir=state_dir,
        backend=backend,
        event_time="at",
        allowed_lateness=LATENESS,
        ticks=ticks,
    )
    if by_columns:
        return stream.process_batch(VisitsByColumns(pause, **held), SCHEMA)
    return stream.process(Visits(pause, **held), SCHEMA)


def started(found, folder, *, is_endless):
    """Start a query that writes the steps; its log keeps all micro-batches."""
    found.sparkSession.conf.set("spark.sql.streaming.minBatchesToRetain", "100000")
    writer = found.writeStream.format("json").option("path", str(folder / "output"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    trigger = {"processingTime": "0 seconds"} if is_endless else {"availableNow": True}
    return writer.trigger(**trigger).start()


def run(folder, *, ticks=None, **options):
    spark = SparkSession.builder.getOrCreate()
    folder = Path(folder)
    reader = spark.readStream.schema(VISITS).option("maxFilesPerTrigger", 1)
    source = reader.json(str(folder / "input"))
    found = visits(source, state_dir=folder / "state", ticks=ticks, **options)
    started(found, folder, is_endless=ticks is not None).awaitTermination()
