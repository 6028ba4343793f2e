"""Functions that read, ask an HTTP server and update: one stream in its own process.

``python -m benchmarks.calls_spark heap``, ``lsm`` or ``tws``; prints JSON. `benchmarks.keyed_calls`
starts it. The server is on loopback, one partition makes all calls.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import click
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from benchmarks.jobs import ROCKSDB
from benchmarks.wait_spark import serve, session
from forebay_spark_runtime import keyed
from forebay_spark_runtime.metrics import operators_of
from forebay_state_api import Clients, KeyedProcessFunction, ValueStateDescriptor
from forebay_state_api.metrics import Phase

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SCHEMA: Final = "user string, answer string, cnt long"
OF_SPARK: Final = frozenset({Phase.INPUT, Phase.OUTPUT_WAIT})
"""The phases in which a subtask waits for Spark."""


class Ask(KeyedProcessFunction[str, Any, tuple[str, str, int]]):
    """Reads a count, asks the server, and updates the count."""

    clients = Clients(http=aiohttp.ClientSession)

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def open(self, context: Any) -> None:
        """Declare the state."""
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

    async def process_element(self, row: Any, ctx: Any) -> Any:
        """Read, ask and update."""
        count = await self.count.async_value() + 1
        async with ctx.clients.http.get(f"{self.url}/{row.n}") as reply:
            answer = await reply.text()
        await self.count.async_update(count)
        yield row.user, answer, count


class AskTransformWithState(StatefulProcessor):  # type: ignore[misc]  # pyspark is untyped
    """The same on Spark's transformWithState, with blocking calls on a kept connection."""

    def __init__(self, port: int) -> None:
        self.port = port

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state, and open the connection."""
        self.acc = handle.getValueState("acc", "cnt long")
        self.http = http.client.HTTPConnection("127.0.0.1", self.port)

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[Row],
        timerValues: Any,  # noqa: N803 - Spark's name
    ) -> Iterator[Row]:
        """Read, ask for each row, and update."""
        stored = self.acc.get()
        count = stored[0] if stored is not None else 0
        for row in rows:
            count += 1
            self.http.request("GET", f"/{row.n}")
            answer = self.http.getresponse().read().decode()
            yield Row(user=key[0], answer=answer, cnt=count)
        self.acc.update((count,))

    def close(self) -> None:
        """Close the connection."""
        self.http.close()


def _built(job: str, source: DataFrame, port: int, folder: Path, in_flight: int) -> DataFrame:
    conf = source.sparkSession.conf
    if job == "tws":
        conf.set("spark.sql.shuffle.partitions", "1")
        conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        processor = AskTransformWithState(port)
        return source.groupBy("user").transformWithState(processor, SCHEMA, "Append", "None")
    conf.set("spark.forebay.calls-in-flight", str(in_flight))
    stream = keyed(
        source, "user", uid="ask", parallelism=1, state_dir=str(folder / "state"), backend=job
    )
    return stream.process(Ask(port), SCHEMA)


def stream(job: str, port: int, batches: int, rows: int, in_flight: int) -> list[dict[str, float]]:
    """Ask for all rows; return the seconds of each micro-batch, of Spark and of our subtask."""
    spark = session()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "input").mkdir()
        users = [f"user {number}" for number in range(rows)]
        for batch in range(batches):
            numbers = range(batch * rows, (batch + 1) * rows)
            part = pa.table({"user": users, "n": numbers})
            pq.write_table(part, folder / "input" / f"{batch:04d}.parquet")
        reader = spark.readStream.schema("user string, n long").option("maxFilesPerTrigger", 1)
        source = reader.parquet(str(folder / "input"))
        writer = _built(job, source, port, folder, in_flight).writeStream.format("noop")
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        events = [event for event in query.recentProgress if event["numInputRows"]]
    found = [_figures(event, rows) for event in events]
    spark.stop()
    return found


def _figures(event: Any, rows: int) -> dict[str, float]:
    found = {"rows": rows, "add_batch_s": event["durationMs"]["addBatch"] / 1_000}
    for operator in operators_of(event):
        phases = operator.phase_seconds
        found["work_s"] = sum(phases[phase] for phase in phases.keys() - OF_SPARK)
    return found


@click.command()
@click.argument("job", type=click.Choice(["heap", "lsm", "tws"]))
@click.option("--batches", default=5, show_default=True, help="Micro-batches, one partition each.")
@click.option("--rows", default=5_000, show_default=True, help="Rows of a micro-batch.")
@click.option("--in-flight", default=100, show_default=True, help="Calls at a time, of ours.")
@click.option("--latency", default=0.1, show_default=True, help="Seconds that an answer takes.")
def main(*, job: str, batches: int, rows: int, in_flight: int, latency: float) -> None:
    """Run one stream; print the times of each micro-batch."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=serve, args=(latency, there), daemon=True)
    server.start()
    try:
        click.echo(json.dumps(stream(job, here.recv(), batches, rows, in_flight)))
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
