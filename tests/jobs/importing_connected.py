"""State that is taken over or replaced under Spark Connect, by the client of a server.

``SPARK_REMOTE`` names the server. The arguments are an empty folder, which both share, and the name
of a scenario; its results are printed as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor
from waiting_connected import finish

from forebay_spark_runtime import keyed
from forebay_spark_runtime.importing import import_tws
from forebay_spark_runtime.importing import replace_state as replace_on_spark
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor
from forebay_state_api.errors import ConfigurationError
from forebay_state_processor.importing import replace_state
from forebay_state_processor.reading import open_state

SCHEMA = "user string, n long"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
FUNCTION = """
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor

class Count(KeyedProcessFunction):
    def open(self, context):
        context.get_state(ValueStateDescriptor("n", int, default=0))

    def process_element(self, row, ctx):
        return ()
"""


class SparkCount(StatefulProcessor):
    def init(self, handle):
        self.n = handle.getValueState("n", "n long")

    def handleInputRows(self, key, rows, timerValues):
        n = self.n.get()[0] if self.n.exists() else 0
        for row in rows:
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


class Scenarios:
    """Queries of one source, whose state is below the folder."""

    def __init__(self, spark, folder):
        self.spark = spark
        self.folder = folder
        self.state_dir = str(folder / "state")
        self.input = folder / "input"
        self.input.mkdir()
        spark.conf.set("spark.forebay.state.dir", self.state_dir)
        spark.conf.set("spark.sql.shuffle.partitions", "1")
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)

    def put(self, *rows):
        number = len(list(self.input.iterdir()))
        path = self.input / f"{number:06d}.json"
        path.write_text("".join(json.dumps({"user": user, "n": n}) + "\n" for user, n in rows))
        os.utime(path, (1_700_000_000 + number,) * 2)

    def source(self):
        reader = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        return reader.json(str(self.input))

    def checkpoint(self, name):
        return str(self.folder / f"{name}-checkpoint")

    def run(self, df, name, *, output):
        """Run a query over all files that it has not seen; return the rows of its output."""
        writer = df.writeStream.format("json").option("path", str(self.folder / output))
        finish(
            writer.option("checkpointLocation", self.checkpoint(name)).trigger(availableNow=True)
        )
        found = self.spark.read.schema(SCHEMA).json(str(self.folder / output)).collect()
        return sorted(tuple(row) for row in found)

    def on_spark(self, name):
        grouped = self.source().groupBy("user")
        df = grouped.transformWithState(SparkCount(), SCHEMA, "Append", "None")
        return self.run(df, name, output="out")

    def ours(self, name, *, uid="counts", output="out", **how):
        df = keyed(self.source(), "user", uid=uid, parallelism=2, **how)
        return self.run(df.process(Count(), SCHEMA), name, output=output)

    def whole(self):
        """Return the rows of a query that ran on ours from its first batch on."""
        return self.ours("whole", uid="whole", output="whole")

    def stopped(self):
        """Run two batches on Spark's operator, and leave the third one to its successor."""
        self.put(("ann", 1), ("bob", 2))
        self.put(("ann", 10))
        self.on_spark("old")
        self.put(("ann", 100), ("eve", 1))

    def taken_over(self):
        """`import_tws`; what it reports, and the rows of the query next to those of one on ours."""
        self.stopped()
        how = {"into": self.checkpoint("new"), "uid": "counts"}
        dry = import_tws(self.spark, self.checkpoint("old"), Count(), dry_run=True, **how)
        done = import_tws(self.spark, self.checkpoint("old"), Count(), **how)
        return [[dry.run, dry.rows], [done.version, done.rows], self.ours("new"), self.whole()]

    def program(self):
        """The same by ``forebay import-tws``, which is another client of the server."""
        self.stopped()
        (self.folder / "counting.py").write_text(FUNCTION)
        program = [str(Path(sys.executable).with_name("forebay")), "import-tws", "--json"]
        program += [self.checkpoint("old"), "--into", self.checkpoint("new"), "--uid=counts"]
        program += ["--state-dir", self.state_dir, "--function=counting:Count"]
        how = {"cwd": self.folder, "stdout": subprocess.PIPE, "timeout": 200}
        done = json.loads(subprocess.run(program, check=True, **how).stdout)
        return [[done["version"], done["rows"]], self.ours("new"), self.whole()]

    def replaced(self):
        """`replace_state` of an Arrow table, of a row that does not fit, and of a DataFrame."""
        name = {"query": "counted", "uid": "counts"}
        how = {"checkpoint": self.checkpoint("ours")}
        self.put(("ann", 1), ("bob", 2))
        self.ours("ours", query="counted")
        with open_state(self.state_dir, provisional=True, **name) as snapshot:
            table = snapshot.to_arrow("n").read_all()
        edited = table.set_column(table.column_names.index("value"), "value", [[40] * 2])
        first = replace_state(self.state_dir, tables={"n": edited}, **how, **name)
        self.put(("ann", 1), ("bob", 1))
        after_first = self.ours("ours", query="counted")

        make = self.spark.createDataFrame
        wrong = make([("ann", "many")], "key string, value string")
        try:
            replace_on_spark({"n": wrong}, **how, **name)
            refused = "nothing"
        except ConfigurationError as error:
            refused = str(error)
        rows = make([("ann", 100), ("bob", 7)], "key string, value long")
        second = replace_on_spark({"n": rows}, without_keys=["ann"], **how, **name)
        self.put(("ann", 1), ("bob", 1))
        after_second = self.ours("ours", query="counted")
        versions = [[one.version, one.rows] for one in (first, second)]
        return [versions, after_first, after_second, refused]


def main():
    folder, scenario = Path(sys.argv[1]), sys.argv[2]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spark = SparkSession.builder.getOrCreate()
    answers.write(json.dumps(getattr(Scenarios(spark, folder), scenario)()))
    answers.close()
    spark.stop()


if __name__ == "__main__":
    main()
