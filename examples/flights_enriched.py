"""A stream of flights, with a call for each flight to an HTTP service that the example starts.

Needs the flights and aiohttp: ``pip install 'forebay-spark-runtime[demo]' aiohttp``.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp
from aiohttp import web
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the customary name

from forebay_spark_runtime import Retry, WaitMetrics, ordered_wait
from forebay_spark_runtime.demo import SCHEMA, Flights, airlines

BUSY_EVERY = 1_000


class AirlineService:
    """Answers ``GET /airlines/UA`` with the name; at times it answers that it is busy."""

    def __init__(self) -> None:
        self.requests = 0
        self.url = ""
        self._names = airlines()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    async def name(self, request: web.Request) -> web.Response:
        self.requests += 1
        if self.requests % BUSY_EVERY == 0:
            return web.Response(status=429, headers={"Retry-After": "0"})
        await asyncio.sleep(0.01)
        return web.json_response({"name": self._names[request.match_info["carrier"]]})

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _serve(self) -> None:
        app = web.Application()
        app.router.add_get("/airlines/{carrier}", self.name)
        runner = web.AppRunner(app, access_log=None)
        self._loop.run_until_complete(runner.setup())
        self._loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", 0).start())
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/airlines"
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()


def asking(url: str) -> Any:
    async def airline(flight: Any, client: aiohttp.ClientSession) -> str:
        async with client.get(f"{url}/{flight.carrier}") as response:
            response.raise_for_status()
            return str((await response.json())["name"])

    return airline


def run(spark: SparkSession, directory: Path, url: str, metrics: WaitMetrics) -> DataFrame:
    """Stream January, and return the flights with the names of their airlines."""
    flights = Flights(directory / "data")
    flights.prepare()
    (directory / "stream").mkdir()
    flights.deliver(0, directory / "stream")
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    named = ordered_wait(
        stream.parquet(str(directory / "stream")),
        asking(url),
        "airline string",
        columns=["carrier"],
        capacity=100,
        try_timeout=2,
        timeout=30,
        retry=Retry(3, delay=0.1, multiplier=2, jitter=0.05),
        resources=aiohttp.ClientSession,
        metrics=metrics,
    )
    writer = named.writeStream.format("parquet").option("path", str(directory / "named"))
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    return spark.read.parquet(str(directory / "named"))


def main() -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    metrics = WaitMetrics()
    with tempfile.TemporaryDirectory() as directory, AirlineService() as service:
        named = run(spark, Path(directory), service.url, metrics)
        named.groupBy("airline").count().orderBy(F.desc("count")).show(truncate=False)
        for batch in metrics.batches():
            print(f"batch {batch.batch_id}: {batch.counts}")
    spark.stop()


if __name__ == "__main__":
    main()
