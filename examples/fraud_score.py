"""Score card payments: read a card's profile, ask a model server, update the profile.

The example starts the model server and the stream. Needs aiohttp:
``pip install forebay-spark-runtime forebay-backend-heap aiohttp``.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import aiohttp
from aiohttp import web
from pyspark.sql import DataFrame, SparkSession

from forebay_spark_runtime import keyed
from forebay_state_api import Calls, Clients, KeyedProcessFunction, Retry, ValueStateDescriptor

PAYMENTS = "payment string, card string, amount double"
SCORES = "payment string, card string, risk double, blocked boolean"
LIMIT = 0.9
"""The risk above which a card is blocked."""
ENOUGH = 3
"""The payments after which the model knows a card."""
TAKES_S = 0.02
"""The time that the model takes for an answer."""


class Profile(NamedTuple):
    """A card, as far as it is known."""

    payments: int
    mean: float
    blocked: bool


NEW = Profile(payments=0, mean=0.0, blocked=False)
PROFILE = ValueStateDescriptor("profile", Profile)


class ModelServer:
    """Answers ``POST /score`` with a risk: how far an amount is above the card's mean."""

    def __init__(self) -> None:
        self.asked = 0
        self.now = 0
        self.most = 0
        """The questions that were answered at the same time, at most."""
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    async def score(self, request: web.Request) -> web.Response:
        features = await request.json()
        self.asked += 1
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(TAKES_S)
        self.now -= 1
        mean = features["mean"]
        known = features["payments"] >= ENOUGH
        risk = 1 - mean / features["amount"] if known and features["amount"] > mean else 0.0
        return web.json_response({"risk": risk})

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
        app.router.add_post("/score", self.score)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        self._loop.run_until_complete(runner.setup())
        self._loop.run_until_complete(web.TCPSite(runner, "127.0.0.1", 0).start())
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/score"
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()


class Score(KeyedProcessFunction[str, Any, tuple[str, str, float, bool]]):
    """Blocks a card whose payment the model finds risky; a blocked card needs no model."""

    clients = Clients(http=aiohttp.ClientSession)
    calls = Calls(try_timeout=2, timeout=10, retry=Retry(4, delay=0.05, multiplier=2))

    def __init__(self, url: str) -> None:
        self.url = url

    def open(self, context: Any) -> None:
        self.profile = context.get_state(PROFILE)

    async def process_element(self, row: Any, ctx: Any) -> Any:
        profile = await self.profile.async_value() or NEW
        if profile.blocked:
            yield row.payment, row.card, 1.0, True
            return
        risk = await ctx.call(self.risk, row.amount, profile, ctx)
        payments = profile.payments + 1
        mean = profile.mean + (row.amount - profile.mean) / payments
        await self.profile.async_update(Profile(payments, mean, risk > LIMIT))
        yield row.payment, row.card, risk, risk > LIMIT

    async def risk(self, amount: float, profile: Profile, ctx: Any) -> float:
        features = {"amount": amount, "mean": profile.mean, "payments": profile.payments}
        async with ctx.clients.http.post(self.url, json=features) as reply:
            reply.raise_for_status()
            return float((await reply.json())["risk"])


def run(spark: SparkSession, directory: Path, url: str) -> DataFrame:
    """Score the payments below ``directory``, and return the scores."""
    stream = spark.readStream.schema(PAYMENTS).json(str(directory / "payments"))
    cards = keyed(
        stream,
        "card",
        uid="score",
        parallelism=2,
        state_dir=str(directory / "state"),
        calls_in_flight=50,
    )
    scored = cards.process(Score(url), SCORES)
    writer = scored.writeStream.format("json").option("path", str(directory / "scores"))
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    return spark.read.schema(SCORES).json(str(directory / "scores"))


def payments_of(cards: int) -> list[dict[str, Any]]:
    """Return four usual payments of each card, then a large one of every tenth card, then one."""
    rows = [(f"card {card}", 10.0 + each) for each in range(4) for card in range(cards)]
    rows += [(f"card {card}", 5_000.0 if card % 10 == 0 else 12.0) for card in range(cards)]
    rows += [(f"card {card}", 11.0) for card in range(cards)]
    return [
        {"payment": f"p{number}", "card": card, "amount": amount}
        for number, (card, amount) in enumerate(rows)
    ]


def main() -> None:
    spark = SparkSession.builder.master("local[2]").getOrCreate()
    with tempfile.TemporaryDirectory() as name, ModelServer() as server:
        directory = Path(name)
        (directory / "payments").mkdir()
        lines = map(json.dumps, payments_of(cards=100))
        (directory / "payments" / "1.json").write_text("\n".join(lines))
        scores = run(spark, directory, server.url)
        scores.groupBy("blocked").count().show()
        print(f"{server.asked} questions, at most {server.most} at a time")
    spark.stop()


if __name__ == "__main__":
    main()
