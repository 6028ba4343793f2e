"""The DataFrames that operators take and return, and the arguments that they refuse.

Type-checked, never run. Both mypy and pyright fail on an ignore that is not needed, so every
ignored line has an error.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, assert_type

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.connect.dataframe import DataFrame as ConnectDataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import LongType, StructField, StructType

import forebay_state_api as fb
from forebay_spark_runtime import (
    Batch,
    BroadcastConnectedDataFrame,
    ConnectedDataFrame,
    KeyedDataFrame,
    Rate,
    RestoreFrom,
    Retry,
    WaitMetrics,
    broadcast,
    keyed,
    ordered_wait,
    unordered_wait,
)
from forebay_testing import FunctionHarness


class Click(NamedTuple):
    user: str
    price: int


class Count(fb.KeyedProcessFunction[str, Click, tuple[str, int]]):
    def process_element(self, row: Click, ctx: fb.RuntimeContext) -> Iterator[tuple[str, int]]:
        yield row.user, ctx.batch_id


class Both(fb.KeyedCoProcessFunction[str, Click, Click, tuple[str]]):
    def process_element1(self, row: Click, ctx: fb.RuntimeContext) -> list[tuple[str]]:
        return [(row.user,)]

    def process_element2(self, row: Click, ctx: fb.RuntimeContext) -> list[tuple[str]]:
        return [(ctx.operator_uid,)]


class Ruled(fb.KeyedBroadcastProcessFunction[str, Click, Click, tuple[str]]):
    limits = fb.MapStateDescriptor("limits", str, int)

    def open(self, context: fb.RuntimeContext) -> None:
        self.limit = context.get_broadcast_state(self.limits)
        assert_type(self.limit.get("a"), int | None)

    def process_element(self, row: Click, ctx: fb.RuntimeContext) -> list[tuple[str]]:
        return [(row.user,)]

    async def process_broadcast_element(self, row: Click, ctx: fb.RuntimeContext) -> None:
        ctx.apply_to_keyed_state(self.limits, lambda key, state: state.clear())
        assert_type(await ctx.async_apply_to_keyed_state(self.limits, print), None)


class Doubled(fb.MapFunction[Click, tuple[int]]):
    def map(self, row: Click) -> tuple[int]:
        return (row.price * 2,)


class Twice(fb.FlatMapFunction[Click, tuple[int]]):
    def flat_map(self, row: Click) -> list[tuple[int]]:
        return [(row.price,)] * 2


class Larger(fb.ReduceFunction[Click]):
    def reduce(self, first: Click, second: Click) -> Click:
        return max(first, second)


async def process(row: Click, ctx: fb.RuntimeContext) -> AsyncIterator[tuple[str, int]]:
    assert_type(await ctx.call(score, row.user, scale=2), float)
    assert_type(await ctx.kept_call("score-v2", score, row.user, scale=2), float)
    await ctx.kept_call("score-v2", score, 5)  # type: ignore[arg-type]
    await ctx.kept_call(score, row.user)  # type: ignore[arg-type]
    yield row.user, ctx.batch_id


async def score(user: str, scale: float = 1) -> float:
    return scale * len(user)


async def larger(first: Click, second: Click) -> Click:
    return max(first, second)


def kept(row: Click, value: int | None) -> tuple[tuple[int], int]:
    return (row.price,), row.price + (value or 0)


async def answer(row: Click, client: Any) -> int:
    return len(client.get(row.user))


async def answers(rows: list[Click], _: None) -> list[int]:
    return [row.price for row in rows]


@asynccontextmanager
async def client() -> AsyncIterator[dict[str, str]]:
    yield {}


SCHEMA = StructType([StructField("n", LongType())])


def a_query(spark: SparkSession) -> StreamingQuery:
    """Every step has its type, from the session to the started query."""
    clicks = spark.readStream.format("rate").load()
    counts = keyed(clicks, "user", uid="count").process(Count(), "user string, n long")
    assert_type(counts, DataFrame)
    enriched = ordered_wait(counts, answer, "m long", resources=client, capacity=10)
    assert_type(enriched, DataFrame)
    query = enriched.writeStream.outputMode("append").start()
    assert_type(query, StreamingQuery)
    return query


def every_function(df: DataFrame) -> None:
    by_user = keyed(df, "user", "country", uid="u", order_by=["at"])
    assert_type(by_user, KeyedDataFrame)
    assert_type(by_user.df, DataFrame)
    assert_type(by_user.process(Count(), SCHEMA), DataFrame)
    assert_type(by_user.process(process, "user string, n long"), DataFrame)
    assert_type(by_user.process(lambda row, ctx: [(row.user, ctx.batch_id)], SCHEMA), DataFrame)
    assert_type(by_user.map(Doubled(), SCHEMA), DataFrame)
    assert_type(by_user.map(lambda row: (row.price,), SCHEMA), DataFrame)
    assert_type(by_user.flat_map(Twice(), SCHEMA), DataFrame)
    assert_type(by_user.flat_map(lambda row: [(row.price,)], SCHEMA), DataFrame)
    assert_type(by_user.reduce(Larger()), DataFrame)
    assert_type(by_user.reduce(larger), DataFrame)
    ttl = fb.StateTtlConfig(timedelta(hours=1))
    assert_type(by_user.map_with_state(kept, SCHEMA, state_type=int, ttl=ttl), DataFrame)
    assert_type(by_user.flat_map_with_state(lambda row, n: ([row], n), SCHEMA), DataFrame)
    connected = by_user.connect(by_user)
    assert_type(connected, ConnectedDataFrame)
    assert_type(connected.process(Both(), SCHEMA), DataFrame)
    ruled = by_user.connect(broadcast(by_user.df, order_by="price"))
    assert_type(ruled, BroadcastConnectedDataFrame)
    assert_type(ruled.process(Ruled(), SCHEMA), DataFrame)


def every_argument(df: DataFrame) -> None:
    keyed(
        df,
        "user",
        uid="u",
        parallelism=4,
        max_parallelism=256,
        query="q",
        batch_id=0,
        state_dir=Path("state"),
        backend="lsm",
        order_by="at",
        event_time="at",
        allowed_lateness=1.5,
        new_state=True,
        restore_from=RestoreFrom("q"),
        allow_non_restored=True,
        in_flight_limit=10,
        batch_size=10,
        page_size=10,
        read_ahead=False,
        drain_timeout=timedelta(minutes=5),
    )
    keyed(
        df,
        "user",
        uid="u",
        restore_from="q",
        allowed_lateness=timedelta(hours=1),
        drain_timeout="5min",
    )
    unordered_wait(
        df,
        answer,
        SCHEMA,
        columns=["user"],
        buffer=10,
        try_timeout=1,
        timeout=timedelta(seconds=10),
        retry=Retry(3, on=(OSError, TimeoutError)),
        rate=Rate(10, per=timedelta(minutes=1)),
        on_error="column",
        error_column="fault",
        key=("user", "country"),
        hedge=0.5,
        name="answer",
        metrics=WaitMetrics(),
        pending="carry",
        uid="answers",
        state_dir="s3://bucket/state",
        parallelism=4,
        carry_after=2,
        new_state=True,
    )
    ordered_wait(df, answers, "n long", batch=Batch(100), query="q", batch_id=1)
    ordered_wait(df, answer, "n long", keep_answers="answer-v1", uid="answers")
    ordered_wait(df, answer, "n long", key=lambda row: row.user, on_error=lambda row, error: 0)
    assert_type(ordered_wait(df=df, fn=answer, output="n long"), DataFrame)


def spark_connect(df: ConnectDataFrame) -> None:
    """As of pyspark 4, Spark Connect has a subclass of ``pyspark.sql.DataFrame``."""
    assert_type(keyed(df, "user", uid="u").process(Count(), SCHEMA), DataFrame)
    assert_type(unordered_wait(df, answer, "n long"), DataFrame)


def refused(df: DataFrame, rows: list[Click], at: datetime) -> None:
    keyed(rows, "user", uid="u")  # type: ignore[arg-type]
    keyed(df, 1, uid="u")  # type: ignore[arg-type]
    keyed(df, "user")  # type: ignore[call-arg]
    keyed(df, "user", uid=None)  # type: ignore[arg-type]
    keyed(df, "user", uid="u", state_directory="s")  # type: ignore[call-arg]
    keyed(df, "user", uid="u", allowed_lateness=at)  # type: ignore[arg-type]
    keyed(df, "user", uid="u", page_size="10")  # type: ignore[arg-type]
    keyed(df, "user", uid="u", drain_timeout=at)  # type: ignore[arg-type]
    FunctionHarness(Count(), "user", page_size="10")  # type: ignore[arg-type]
    FunctionHarness(Count(), "user", pagesize=10)  # type: ignore[call-arg]
    keyed(df, "user", uid="u", restore_from=3)  # type: ignore[arg-type]
    by_user = keyed(df, "user", uid="u")
    by_user.writeStream  # type: ignore[attr-defined]
    by_user.process(Count, SCHEMA)  # type: ignore[arg-type]
    by_user.process(Both(), SCHEMA)  # type: ignore[arg-type]
    by_user.connect(broadcast(by_user.df)).process(Both(), SCHEMA)  # type: ignore[arg-type]
    by_user.process(Doubled(), SCHEMA)  # type: ignore[arg-type]
    by_user.process(lambda row: row, SCHEMA)  # type: ignore[arg-type, misc]
    by_user.process(Count(), 3)  # type: ignore[arg-type]
    by_user.map(Count(), SCHEMA)  # type: ignore[arg-type]
    by_user.reduce(Doubled())  # type: ignore[arg-type]
    by_user.map_with_state(larger, SCHEMA)  # type: ignore[arg-type]
    by_user.connect(df)  # type: ignore[call-overload]
    by_user.connect(by_user).process(Count(), SCHEMA)  # type: ignore[arg-type]
    ordered_wait(rows, answer, "n long")  # type: ignore[arg-type]
    ordered_wait(df, answer)  # type: ignore[call-arg]
    ordered_wait(df, answer, "n long", 10)  # type: ignore[call-arg, arg-type]
    ordered_wait(df, answer, "n long", capacityy=10)  # type: ignore[call-arg]
    ordered_wait(df, answer, "n long", capacity="10")  # type: ignore[arg-type]
    ordered_wait(df, answer, "n long", on_error="drop")  # type: ignore[arg-type]
    ordered_wait(df, answer, "n long", retry=3)  # type: ignore[arg-type]
    ordered_wait(df, answer, "n long", resources={})  # type: ignore[arg-type]
    ordered_wait(df, answer, "n long", pending="later")  # type: ignore[arg-type]
    ordered_wait(df, lambda row: row, "n long")  # type: ignore[arg-type, misc]
    unordered_wait(df, answer, "n long", timeout=at)  # type: ignore[arg-type]
