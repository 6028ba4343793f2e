"""Keyed functions that ask real servers by the clients that users have, on two event loops."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from forebay_state_api import Clients, FunctionError, KeyedProcessFunction, ValueStateDescriptor
from forebay_testing import FunctionHarness

pytestmark = pytest.mark.servers

PROFILE = ValueStateDescriptor("profile", str)
TOTAL = ValueStateDescriptor("total", int, default=0)
USERS = [f"user{n}" for n in range(30)]
ROWS = [{"user": user, "n": n} for n in range(3) for user in USERS]


class Profiles(KeyedProcessFunction):
    """Asks for each user once, keeps the answer, and adds up the user's numbers."""

    def __init__(self, ask, clients):
        self.ask = ask
        self.clients = clients

    def open(self, context):
        self.profile = context.get_state(PROFILE)
        self.total = context.get_state(TOTAL)

    async def process_element(self, row, ctx):
        profile = await self.profile.async_value()
        if profile is None:
            async with asyncio.timeout(100):
                profile = await self.ask(ctx.clients, row["user"])
            await self.profile.async_update(profile)
        total = await self.total.async_value() + row["n"]
        await self.total.async_update(total)
        yield row["user"], profile, total, type(asyncio.get_running_loop()).__module__


def run(function, rows=ROWS, **options):
    with FunctionHarness(function, "user", **options) as harness:
        return sorted(harness.process(rows))


# -- clients that keep what they need themselves ------------------------------------------------


async def profile_by_aiohttp(url, clients, user):
    async with clients.http.get(f"{url}/profile/{user}") as reply:
        return await reply.text()


async def profile_by_httpx(url, clients, user):
    return (await clients.http.get(f"{url}/profile/{user}")).text


async def profile_by_postgres(clients, user):
    return await clients.pool.fetchval("select upper($1::text)", user)


async def profile_by_redis(clients, user):
    async with clients.redis.pipeline(transaction=True) as pipeline:
        answers = await pipeline.set(user, user.upper()).get(user).execute()
    return answers[1].decode()


def open_aiohttp():
    import aiohttp

    return aiohttp.ClientSession()


def open_httpx():
    import httpx

    return httpx.AsyncClient(timeout=100)


def open_pool(where, size=4):
    import asyncpg

    return asyncpg.create_pool(**where, min_size=1, max_size=size)


def open_redis(port):
    import redis.asyncio

    return redis.asyncio.Redis(port=port)


@pytest.fixture(params=["aiohttp", "httpx", "asyncpg", "redis"])
def profiles(request):
    """A function that asks by one client."""
    get = request.getfixturevalue
    match request.param:
        case "aiohttp":
            ask, clients = partial(profile_by_aiohttp, get("http").url), Clients(http=open_aiohttp)
        case "httpx":
            ask, clients = partial(profile_by_httpx, get("http").url), Clients(http=open_httpx)
        case "asyncpg":
            ask, clients = profile_by_postgres, Clients(pool=partial(open_pool, get("postgres")))
        case "redis":
            ask, clients = profile_by_redis, Clients(redis=partial(open_redis, get("redis_port")))
    return Profiles(ask, clients)


def test_each_client_answers_beside_state(profiles, on_thread, request):
    loop = request.node.callspec.params["on_thread"]
    options = {"backend": "lsm", "backend_options": {"block-cache-bytes": 0}, "late_answers": 7}
    rows = on_thread(lambda: run(profiles, **options))
    sums = [(user, user.upper(), n * (n + 1) // 2) for user in sorted(USERS) for n in range(3)]
    assert [row[:3] for row in rows] == sums
    assert {row[3].partition(".")[0] for row in rows} == {loop}


def test_calls_of_an_http_client_are_in_flight_together(http, on_thread):
    on_thread(lambda: run(Profiles(partial(profile_by_httpx, http.url), Clients(http=open_httpx))))
    assert sorted(http.asked) == sorted(USERS)
    assert http.most > 10


# -- a pool that is smaller than the records in flight ------------------------------------------


class HoldsAConnection(Profiles):
    """Holds one of the pool's connections while it waits for state."""

    async def process_element(self, row, ctx):
        async with asyncio.timeout(100), ctx.clients.pool.acquire() as connection:
            total = await self.total.async_value()
            added = await connection.fetchval("select $1::int + $2::int", total, row["n"])
            await self.total.async_update(added)
        yield row["user"], added


@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_a_small_pool_serves_records_that_wait_for_state(postgres, on_thread, backend):
    function = HoldsAConnection(None, Clients(pool=partial(open_pool, postgres, 2)))
    rows = on_thread(lambda: run(function, backend=backend, late_answers=3))
    assert rows == sorted((user, n * (n + 1) // 2) for user in USERS for n in range(3))


# -- a batch that fails and is repeated ---------------------------------------------------------


class Pays(Profiles):
    """Records each payment in a transaction; refuses what ``refuses`` names, as a service would."""

    refuses = frozenset({"user20"})

    async def process_element(self, row, ctx):
        async with ctx.clients.pool.acquire() as connection, connection.transaction():
            await connection.execute(
                "insert into payments values ($1, $2) on conflict do nothing", row["user"], row["n"]
            )
            if row["user"] in self.refuses:
                raise ValueError("refused")
            await asyncio.sleep(0.02)  # others' transactions are open when the batch fails
        await self.total.async_update(await self.total.async_value() + row["n"])
        yield row["user"], await self.total.async_value()


class PaysAll(Pays):
    refuses = frozenset()


def test_a_failed_batch_rolls_back_its_transactions_and_is_repeated(
    postgres, ask_postgres, on_thread
):
    ask_postgres(
        "drop table if exists payments",
        "create table payments (who text, n int, primary key (who, n))",
    )
    clients = Clients(pool=partial(open_pool, postgres, 10))

    def fail_and_repeat():
        with FunctionHarness(Pays(None, clients), "user") as harness:
            with pytest.raises(FunctionError, match="refused"):
                harness.process(ROWS)
            left = ask_postgres(
                "select (select count(*) from pg_stat_activity where state like 'idle in%'), "
                "(select count(*) from payments where who = 'user20')"
            )
            rows = harness.restart(PaysAll(None, clients)).process(ROWS)
            return left, sorted(rows)

    left, rows = on_thread(fail_and_repeat)
    assert left == [(0, 0)]
    assert rows == sorted((user, n * (n + 1) // 2) for user in USERS for n in range(3))
    assert ask_postgres("select count(*), sum(n) from payments") == [(90, 90)]


# -- records that wait for each other, and for nothing ------------------------------------------


class Baton(Profiles):
    """Waits in Redis for what the next user's record pushes there."""

    async def process_element(self, row, ctx):
        number = int(row["user"].removeprefix("user"))
        if number + 1 < len(USERS):
            _, passed = await ctx.clients.redis.blpop(f"baton{number}", timeout=100)
        else:
            passed = b"0"
        await self.total.async_update(int(passed) + 1)
        if number:
            await ctx.clients.redis.rpush(f"baton{number - 1}", int(passed) + 1)
        yield row["user"], await self.total.async_value()


def test_a_record_waits_for_what_a_later_one_sends(redis_port, on_thread):
    function = Baton(None, Clients(redis=partial(open_redis, redis_port)))
    rows = on_thread(lambda: run(function, ROWS[:30]))
    assert dict(rows) == {user: 30 - n for n, user in enumerate(USERS)}


class Scopes(Profiles):
    """Uses anyio's scopes and task groups, as httpx does."""

    async def process_element(self, row, ctx):
        import anyio

        http, url = ctx.clients.http, self.ask
        with anyio.move_on_after(0.05) as scope:
            await http.get(f"{url}/never")
        answers = []

        async def one(user):
            answers.append((await http.get(f"{url}/profile/{user}")).text)
            await self.total.async_update(await self.total.async_value() + 1)

        with anyio.fail_after(100):
            async with anyio.create_task_group() as group:
                for name in (row["user"], "ann"):
                    group.start_soon(one, name)
        yield row["user"], scope.cancelled_caught, sorted(answers), await self.total.async_value()


def test_anyios_scopes_end_waits_and_their_tasks_are_the_records(http, on_thread):
    rows = on_thread(lambda: run(Scopes(http.url, Clients(http=open_httpx)), ROWS[:5]))
    assert rows == [(f"user{n}", True, ["ANN", f"USER{n}"], 2) for n in range(5)]
