"""A client of Spark Connect, and its scenarios, whose results are written to ``found.json``.

The scenarios with keyed functions are here, those of ordered waits alone in
``waiting_connected.py``. Each query costs seconds, as Spark starts workers for it alone; so keyed
functions and ordered waits share queries, and the scenarios of ``more`` run only on request.

Its argument is a folder for its files; the environment names the server. A line of input names a
group of scenarios, and their end is said in a line of output. It ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import waiting_connected
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StringType, StructType

from forebay_spark_runtime import WaitMetrics, broadcast, keyed, ordered_wait, why
from forebay_spark_runtime.importing import import_state
from forebay_spark_runtime.metrics import operators_of
from forebay_spark_runtime.ticks_command import edit
from forebay_state_api import (
    Calls,
    Clients,
    KeyedBatchFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapStateDescriptor,
    Retry,
    ValueStateDescriptor,
)
from forebay_state_api.storage import open_storage

SCHEMA = "user string, n long"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


class Count(KeyedProcessFunction):
    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))

    async def process_element(self, row, ctx):
        async with asyncio.timeout(100):
            n = await self.n.async_value() + 1
            await asyncio.sleep(0.001)
        await self.n.async_update(n)
        yield row.user, n


class Later(KeyedProcessFunction):
    def process_element(self, row, ctx):
        now = ctx.timers.processing_time
        ctx.timers.register_processing_time(now + timedelta(milliseconds=1))
        yield row.user, -1

    def on_timer(self, at, ctx):
        yield ctx.current_key, ctx.batch_id


class Service:
    """A client that answers each name but one, at the second try."""

    def __init__(self):
        self.tried = set()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        self.tried.clear()

    async def greet(self, name, key):
        await asyncio.sleep(0)
        if name == "eve":
            await asyncio.Event().wait()
        if key not in self.tried:
            self.tried.add(key)
            raise ConnectionError("first try")
        return f"hello {name}"


class GreetUsers(KeyedProcessFunction):
    clients = Clients(service=Service)
    calls = Calls(timeout=100, retry=Retry(2, delay=0))

    async def process_element(self, row, ctx):
        greet = ctx.clients.service.greet
        yield row.user, await ctx.call(greet, row.user, ctx.idempotency_key)


class Numbered(KeyedBatchFunction, KeyedBroadcastProcessFunction):
    def open(self, context):
        self.numbers = context.get_broadcast_state(MapStateDescriptor("numbers", str, int))

    def process_element(self, row, ctx):
        yield row.user, self.numbers.get(row.user)

    def process_batch(self, rows, ctx):
        numbers = [10 * self.numbers.get(user) for user in rows["user"].to_pylist()]
        return {"user": rows["user"], "n": numbers}

    def process_broadcast_element(self, row, ctx):
        self.numbers.put(row.user, row.n)


def refusal(call):
    """Return the error of a call as text."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the scenario records it
        return f"{type(error).__name__}: {error}"
    return "no error"


class Scenarios:
    default = (
        "stream",
        "waited",
        "figures",
        "foreach_batch",
        "refused",
        "bounded",
        "snapshots",
        "imported",
        "broadcast",
        "calls",
        "default_parallelism",
        "bad_input",
        "schema_object",
    )
    more = ("older", "filtered", "changes", "restarted")
    quiet = ("ticks",)

    def __init__(self, spark, folder):
        self.spark = spark
        self.folder = Path(folder)
        self.input = self.folder / "input"
        self.input.mkdir(parents=True)
        self.files = 0
        self.metrics = WaitMetrics(directory=self.folder / "metrics")
        self.progress = []

    def put(self, *users):
        path = self.input / f"{self.files:06d}.json"
        path.write_text("".join(json.dumps({"user": user}) + "\n" for user in users))
        os.utime(path, (1_700_000_000 + self.files,) * 2)
        self.files += 1

    def source(self):
        reader = self.spark.readStream.schema("user string").option("maxFilesPerTrigger", 1)
        return reader.json(str(self.input))

    def counted(self, df, **options):
        return keyed(df, "user", uid="counts", parallelism=2, **options).process(Count(), SCHEMA)

    def rows(self, output, schema=SCHEMA):
        found = self.spark.read.schema(schema).json(str(self.folder / output)).collect()
        return sorted(tuple(row) for row in found)

    def run(self, writer, name):
        writer = writer.option("checkpointLocation", str(self.folder / f"{name} checkpoint"))
        return waiting_connected.finish(writer.trigger(availableNow=True))

    def stream(self):
        """A keyed function on a stream, an ordered wait for its rows, and a restart."""
        self.put("ann", "bob")
        self.run_stream()
        self.put("ann")
        self.run_stream(max_parallelism=128)
        return self.rows("stream")

    def run_stream(self, **options):
        counted = self.counted(self.source(), **options)
        wait = ordered_wait(counted, waiting_connected.doubled, "twice long", metrics=self.metrics)
        sink = wait.writeStream.format("json").option("path", str(self.folder / "stream"))
        self.progress += self.run(sink, "stream")

    def waited(self):
        """The answers in ``stream``, and what the wait counted in each batch."""
        counted = [[report.batch_id, report.counts.rows] for report in self.metrics.batches()]
        return [self.rows("stream", f"{SCHEMA}, twice long"), counted]

    def figures(self):
        """Figures in the progress events of ``stream``."""
        found = [one for event in self.progress for one in operators_of(event)]
        rows = sum(one.figures["rows_in"] for one in found)
        return [found[0].uid, rows, found[0].subtasks, min(len(one.phase_seconds) for one in found)]

    def foreach_batch(self):
        """With query= and batch_id=; in each batch, what is refused is tried before and after."""
        self.run_batches()
        return [self.rows("batches"), self.rows("keys", "user string, key string")]

    def run_batches(self):
        output, keys = str(self.folder / "batches"), str(self.folder / "keys")
        counted, key = self.counted, waiting_connected.key
        names, folder = self.refusals, self.folder

        def each(df, batch_id):
            named = {"query": "nightly", "batch_id": batch_id}
            said = [refusal(lambda: counted(df))]
            counted(df, **named).write.mode("append").json(output)
            said.append(refusal(lambda: counted(df, **named)))
            for name, text in zip(names, said, strict=True):
                (folder / name).write_text(text)
            waited = ordered_wait(df, key, "key string", **named)
            waited.write.mode("append").json(keys)

        self.run(self.source().writeStream.foreachBatch(each), "batches")

    refusals = ("without names", "twice")

    def refused(self):
        """The errors without names, and of a second operator of one uid, in the last batch."""
        return {name: (self.folder / name).read_text() for name in self.refusals}

    def bounded(self):
        """A bounded DataFrame, with and without a name for its state."""
        df = self.spark.createDataFrame([("ann",), ("bob",), ("ann",)], "user string")
        dropped = sorted(tuple(row) for row in self.counted(df).collect())
        kept = [
            sorted(tuple(row) for row in self.counted(df, query="q", batch_id=n).collect())
            for n in (0, 1)
        ]
        return [dropped, *kept]

    def snapshots(self):
        """``spark.read`` of the newest version of the state that ``bounded`` kept."""
        return self.snapshot()

    def older(self):
        """The first version of that state."""
        return self.snapshot(version="1")

    def snapshot(self, **options):
        df = self.load(self.kept(self.spark.read, state="n", **options))
        return sorted(tuple(row) for row in df.select("key", "value").collect())

    def kept(self, reader, **options):
        return reader.format("forebay").options(query="q", uid="counts", **options)

    def load(self, source):
        return source.load(self.spark.conf.get("spark.forebay.state.dir"))

    def filtered(self):
        """Push-down of a filter on that state, where Spark's setting allows it and where not."""
        found = []
        for allowed in ("true", "false"):
            self.spark.conf.set(PUSHDOWN, allowed)
            df = self.load(self.kept(self.spark.read, pushdown="true")).where("key = 'bob'")
            try:
                found.append([(row.key, row.n) for row in df.collect()])
            except Exception as error:  # noqa: BLE001 - the scenario records it
                found.append(str(error))
        self.spark.conf.unset(PUSHDOWN)
        return found

    def changes(self):
        """A stream of that state's changes."""
        source = self.kept(self.spark.readStream, state="n", changes="true", old="true")
        changed = self.load(source).select("key", "operation", "value", "old", "version")
        sink = changed.writeStream.format("json").option("path", str(self.folder / "changes"))
        self.run(sink, "changes")
        columns = "key string, operation string, value long, old long, version long"
        return self.rows("changes", columns)

    def restarted(self):
        """The three queries once more, the last after another version."""
        self.put("bob")
        self.run_stream(max_parallelism=128)
        self.run_batches()
        df = self.spark.createDataFrame([("ann",)], "user string")
        self.counted(df, query="q", batch_id=2).collect()
        return [self.rows("stream"), self.rows("batches"), self.changes()]

    def ticks(self):
        """A query that gets ticks, which Spark refuses before the command, and loses them again."""
        users, names = self.folder / "users", ("a", "b", "c", "d")
        users.mkdir()
        (users / "1.json").write_text("".join(json.dumps({"user": name}) + "\n" for name in names))

        def run(**options):
            source = self.spark.readStream.schema("user string").json(str(users))
            later = keyed(source, "user", uid="later", parallelism=2, **options)
            later = later.process(Later(), SCHEMA)
            sink = later.writeStream.format("json").option("path", str(self.folder / "later"))
            progress = self.run(sink, "later")
            commits = [*(self.folder / "later checkpoint" / "commits").glob("[0-9]*")]
            return [len(commits), sum(event.numInputRows for event in progress)]

        checkpoint = open_storage(str(self.folder / "later checkpoint"))
        found = [run()]
        try:
            run(ticks="1 day")
        except Exception as error:  # noqa: BLE001 - the scenario records it
            found.append(str(why(error)))
        found += [edit(checkpoint, 1), run(ticks="1 day"), run(ticks="1 day")]
        found += [edit(checkpoint, 0), run(), self.rows("later")]
        return found

    def imported(self):
        """A DataFrame that becomes the first version of an operator, and what goes on from it."""
        users = self.spark.createDataFrame([("ann", 7), ("eve", 1)], "key string, n long")
        name = {"query": "imported", "uid": "counts"}
        done = import_state(users, function=Count, parallelism=3, **name)
        df = self.spark.createDataFrame([("ann",), ("bob",)], "user string")
        rows = self.counted(df, query="imported", batch_id=0).collect()
        return [done.rows, sorted(tuple(row) for row in rows)]

    def broadcast(self):
        """Each subtask gets the numbers of users from a second DataFrame."""
        df = self.spark.createDataFrame([("ann",), ("bob",)], "user string")
        numbers = self.spark.createDataFrame([("ann", 1), ("bob", 2)], SCHEMA)
        by_rows, by_columns = (
            keyed(df, "user", uid=uid, parallelism=2).connect(broadcast(numbers))
            for uid in ("numbered", "by_columns")
        )
        rows = by_rows.process(Numbered(), SCHEMA).collect()
        columns = by_columns.process_batch(Numbered(), SCHEMA).collect()
        return sorted(tuple(row) for row in [*rows, *columns])

    def calls(self):
        """Clients and retries, and a time limit for the record whose call gets no answer."""

        def asking(users, limit_s):
            df = self.spark.createDataFrame([(user,) for user in users], "user string")
            how = {"uid": "asking", "record_timeout": limit_s, "on_error": "column"}
            asked = keyed(df, "user", parallelism=2, **how)
            return asked.process(GreetUsers(), "user string, greeting string").collect()

        greeted, late = asking(["ann", "bob"], 100), asking(["eve"], 0.1)
        return [sorted(row.greeting for row in greeted), [row.error.type for row in late]]

    def default_parallelism(self):
        """Without ``parallelism=``, Spark's default parallelism is used."""
        df = self.spark.createDataFrame([("ann",)], "user string")
        return keyed(df, "user", uid="counts").options.parallelism

    def bad_input(self):
        """The error is raised on the client, before anything runs."""
        df = self.spark.createDataFrame([("ann",)], "user string")
        return [
            refusal(bad)
            for bad in (
                lambda: keyed(df, "users", uid="u"),
                lambda: keyed(df, "user", uid="u").process(Count(), "user strng"),
                lambda: keyed(df, "user", uid="u", backend="heep"),
                lambda: keyed(df, "user", uid="u", parallelism=500),
            )
        ]

    def schema_object(self):
        """The output schema is a ``StructType`` object."""
        schema = StructType().add("user", StringType()).add("n", LongType())
        df = self.spark.createDataFrame([("ann",)], "user string")
        result = keyed(df, "user", uid="u").process(Count(), schema)
        return [tuple(row) for row in result.collect()]


def run_scenarios(kinds, group):
    """Run the scenarios of a group; return their results."""
    found = {}
    for kind, scenarios in kinds.items():
        found[kind] = {}
        for name in getattr(scenarios, group):
            started = time.monotonic()
            found[kind][name] = getattr(scenarios, name)()
            sys.stderr.write(f"{kind} {name}: {time.monotonic() - started:.1f} s\n")
    return found


def main():
    folder = Path(sys.argv[1])
    # Workers cannot import the modules next to this file.
    cloudpickle.register_pickle_by_value(waiting_connected)
    spark = SparkSession.builder.getOrCreate()
    spark.conf.set("spark.forebay.state.dir", f"{folder}/state")
    kinds = {
        "keyed": Scenarios(spark, folder / "keyed"),
        "waiting": waiting_connected.Scenarios(spark),
    }
    for line in sys.stdin:
        found = run_scenarios(kinds, line.strip())
        (folder / "found.json").write_text(json.dumps(found))
        sys.stdout.write("done\n")
        sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main()
