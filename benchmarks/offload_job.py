"""One run of the write-heavy job of `benchmarks.compaction_offload`; prints JSON.

Every micro-batch overwrites random keys with random bytes, so that nothing can be compressed and
most writes replace an older value: compaction has much to do.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from forebay_spark_runtime import keyed
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor

SCHEMA: Final = "user long"


class Overwrite(KeyedProcessFunction[Any, Any, Any]):
    """Stores new random bytes under the key of each row; emits nothing."""

    def __init__(self, value_bytes: int) -> None:
        self._value_bytes = value_bytes

    def open(self, context: Any) -> None:
        self.value = context.get_state(ValueStateDescriptor("value", bytes))

    def process_element(self, row: Any, ctx: Any) -> Iterator[Any]:
        self.value.update(random.randbytes(self._value_bytes))
        return iter(())


def write_input(folder: Path, *, keys: int, rows: int, batches: int) -> None:
    """Write one file of random keys per micro-batch, the same in each run."""
    folder.mkdir(parents=True)
    generator = random.Random(7)
    for batch in range(batches):
        lines = (f'{{"user":{generator.randrange(keys)}}}\n' for _ in range(rows))
        file = folder / f"{batch:05d}.json"
        file.write_text("".join(lines), encoding="utf-8")
        os.utime(file, (1_700_000_000 + batch, 1_700_000_000 + batch))


def session_with(settings: dict[str, str]) -> SparkSession:
    """Start Spark with one core, because the job is pinned to one."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    conf = {
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        **settings,
    }
    builder = SparkSession.builder.master("local[1]").appName("offload")
    for name, value in conf.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


@click.command()
@click.option("--folder", type=click.Path(path_type=Path), required=True)
@click.option("--keys", type=int, required=True)
@click.option("--rows", type=int, required=True)
@click.option("--batches", type=int, required=True)
@click.option("--value-bytes", type=int, required=True)
@click.option("--gateway", default=None)
def main(*, folder: Path, value_bytes: int, gateway: str | None, **of_input: int) -> None:
    """Run the job, and print how long its micro-batches took."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    write_input(folder / "input", **of_input)
    settings = {
        "spark.forebay.state.dir": str(folder / "state"),
        "spark.forebay.state.backend": "lsm",
        "spark.forebay.lsm.max-runs": "20",
    }
    if gateway is not None:
        settings["spark.forebay.compaction.service"] = "ray"
        settings["spark.forebay.compaction.remote.address"] = gateway
    session = session_with(settings)
    source = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    events = source.json(str(folder / "input"))
    output = keyed(events, "user", uid="offload", parallelism=1).process(
        Overwrite(value_bytes), "user long"
    )
    writer = output.writeStream.format("noop")
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    progress = [json.loads(each.json) for each in query.recentProgress]
    session.stop()
    times = [p["durationMs"]["triggerExecution"] for p in progress if p["numInputRows"] > 0]
    print(json.dumps({"batch_ms": times}))


if __name__ == "__main__":
    main()
