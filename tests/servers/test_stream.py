"""A function on Spark that asks PostgreSQL, Redis and an HTTP server for each row."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from forebay_spark_runtime import keyed
from forebay_state_api import Clients, KeyedProcessFunction, ValueStateDescriptor

pytestmark = [pytest.mark.servers, pytest.mark.spark]

SCHEMA = "user string, total long, country string, seen long, name string"


def open_http():
    import aiohttp

    return aiohttp.ClientSession()


def open_pool(where):
    import asyncpg

    return asyncpg.create_pool(**where, min_size=1, max_size=4)


def open_redis(port):
    import redis.asyncio

    return redis.asyncio.Redis(port=port)


class AsksAll(KeyedProcessFunction):
    """Adds up, and asks all three at once."""

    def __init__(self, url, where, port):
        self.url = url
        self.clients = Clients(
            http=open_http, pool=partial(open_pool, where), redis=partial(open_redis, port)
        )

    def open(self, context):
        self.total = context.get_state(ValueStateDescriptor("total", int, default=0))

    async def process_element(self, row, ctx):
        async with asyncio.timeout(100), asyncio.TaskGroup() as group:
            country = group.create_task(self.country(ctx.clients.pool, row.user))
            seen = group.create_task(self.seen(ctx.clients.redis, row))
            name = group.create_task(self.name(ctx.clients.http, row.user))
            total = group.create_task(self.add(row.n))
        yield row.user, total.result(), country.result(), seen.result(), name.result()

    async def country(self, pool, user):
        return await pool.fetchval("select country from people where name = $1", user)

    async def seen(self, redis, row):
        await redis.sadd(f"seen {row.user}", row.n)
        return await redis.scard(f"seen {row.user}")

    async def name(self, http, user):
        async with http.get(f"{self.url}/profile/{user}") as reply:
            return await reply.text()

    async def add(self, n):
        total = await self.total.async_value() + n
        await self.total.async_update(total)
        return total


def test_clients_outlive_connections_that_servers_close_between_batches(
    stage, http, postgres, ask_postgres, redis_port
):
    import redis

    ask_postgres(
        "create table people as "
        "select 'u' || n as name, case n % 2 when 0 then 'NO' else 'IS' end as country "
        "from generate_series(0, 9) as n"
    )
    asking = keyed(stage.source(), "user", uid="asking", parallelism=2).process(
        AsksAll(http.url, postgres, redis_port), SCHEMA
    )
    stage.spark.conf.set("spark.forebay.state.backend", "lsm")
    expected = []
    for batch in range(3):
        stage.put(*[{"user": f"u{n}", "n": batch} for n in range(10)])
        total = batch * (batch + 1) // 2
        expected += [
            (f"u{n}", total, "IS" if n % 2 else "NO", batch + 1, f"U{n}") for n in range(10)
        ]
        stage.run(asking)
        with redis.Redis(port=redis_port) as other:
            other.client_kill_filter(_type="normal")
        ask_postgres(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where pid <> pg_backend_pid() and backend_type = 'client backend'"
        )
    assert stage.rows(SCHEMA) == sorted(expected)
