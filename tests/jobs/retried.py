"""A stream whose tasks and stages run again: its figures must be as if they had run once.

Its argument is an empty folder. In its first micro-batch, the first attempt of each task of the
operator fails. In its second, the operator's output is lost while the next stage reads it, so that
some of its subtasks run again. It prints the figures of each micro-batch, and what ran, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark import TaskContext, cloudpickle
from pyspark.sql import SparkSession

from forebay_spark_runtime import keyed
from forebay_spark_runtime.metrics import operators_of
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor

cloudpickle.register_pickle_by_value(sys.modules[__name__])
ROWS = 40


class Count(KeyedProcessFunction):
    """Counts rows; fails when it first meets a row of the first micro-batch."""

    def __init__(self, runs: str) -> None:
        self.runs = Path(runs)

    def open(self, context):
        self.n = context.get_state(ValueStateDescriptor("n", int, default=0))
        attempt = TaskContext.get().taskAttemptId()
        (self.runs / f"{context.batch_id}-{context.subtask_index}-{attempt}").touch()

    def process_element(self, row, ctx):
        if row.batch == 0 and TaskContext.get().attemptNumber() == 0:
            raise RuntimeError("the first attempt fails")
        self.n.update(self.n.value() + 1)
        yield row.user, row.batch


def losing(blocks: str, lost: str):
    """Return a function that loses the shuffle files of the second micro-batch, once."""

    def lose(batches):
        for batch in batches:
            if 1 in batch.column("batch").to_pylist() and not Path(lost).exists():
                Path(lost).touch()
                for file in Path(blocks).glob("**/shuffle_*"):
                    file.unlink(missing_ok=True)
            yield batch

    return lose


def main() -> None:
    folder = Path(sys.argv[1])
    runs, source = folder / "runs", folder / "input"
    runs.mkdir()
    source.mkdir()
    for batch in (0, 1):
        rows = [{"user": f"user-{n}", "batch": batch} for n in range(ROWS)]
        (source / f"{batch}.json").write_text("\n".join(map(json.dumps, rows)))
    settings = {
        "spark.local.dir": str(folder / "blocks"),
        "spark.task.maxFailures": "4",
        "spark.forebay.state.dir": str(folder / "state"),
        "spark.stage.maxConsecutiveAttempts": "8",
    }
    builder = SparkSession.builder.master("local[1,4]").appName("retried")
    spark = builder.config(map=settings).getOrCreate()
    reader = spark.readStream.schema("user string, batch long").option("maxFilesPerTrigger", 1)
    counted = keyed(reader.json(str(source)), "user", uid="counts", parallelism=2)
    output = counted.process(Count(str(runs)), "user string, batch long")
    lose = losing(str(folder / "blocks"), str(folder / "lost"))
    later = output.repartition(3, "user").mapInArrow(lose, "user string, batch long")
    sink = later.writeStream.format("noop").trigger(availableNow=True)
    query = sink.option("checkpointLocation", str(folder / "checkpoint")).start()
    query.awaitTermination()
    batches = [one for progress in query.recentProgress for one in operators_of(progress)]
    found = {
        "ran": sorted(path.name.rpartition("-")[0] for path in runs.iterdir()),
        "lost": (folder / "lost").exists(),
        "figures": {one.batch_id: one.figures for one in batches},
    }
    sys.stdout.write(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main()
