"""Sends elements to the outside world a few at a time; waiting elements are operator state.

The waiting elements do not belong to a key. They are a list of the subtask, which is split evenly
when the query continues with another parallelism.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from forebay_spark_runtime import keyed
from forebay_state_api import (
    CheckpointedFunction,
    InitializationContext,
    KeyedProcessFunction,
    ListStateDescriptor,
    RuntimeContext,
    SnapshotContext,
)

BUFFERED = ListStateDescriptor("buffered-elements", tuple[str, int])


class BufferingSink(KeyedProcessFunction[str, Any, tuple[int, str]], CheckpointedFunction):
    def __init__(self, threshold: int) -> None:
        self.threshold = threshold

    def initialize_state(self, context: InitializationContext) -> None:
        self.checkpointed = context.operator_state_store.get_list_state(BUFFERED)
        self.buffered = list(self.checkpointed.get())

    def process_element(self, row: Any, ctx: RuntimeContext) -> Iterator[tuple[int, str]]:
        self.buffered.append((row.word, row.count))
        if len(self.buffered) >= self.threshold:
            yield ctx.subtask_index, ", ".join(f"{word} {n}" for word, n in self.buffered)
            self.buffered.clear()

    def snapshot_state(self, context: SnapshotContext) -> None:  # noqa: ARG002 - the contract
        self.checkpointed.update(self.buffered)


def run(spark: SparkSession) -> DataFrame:
    counts = [("to", 1), ("be", 1), ("or", 1), ("not", 1), ("to", 2), ("be", 2), ("that", 1)]
    rows = spark.createDataFrame(counts, "word string, count int").coalesce(1)
    operator = keyed(rows, "word", uid="sink", parallelism=1)
    return operator.process(BufferingSink(threshold=3), "subtask int, sent string")


def main() -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    run(spark).show(truncate=False)  # two lines of three; the seventh word waits for others
    spark.stop()


if __name__ == "__main__":
    main()
