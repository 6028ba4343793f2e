"""``ctx.call`` and ``calls_in_flight``: tries, limits, hedges, clients that break, counts."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest

from forebay_engine.isolation.failed_record import FailedRecord
from forebay_state_api import (
    Calls,
    ClientBrokenError,
    Clients,
    ConfigurationError,
    FunctionError,
    KeyedProcessFunction,
    Rate,
    Retry,
    ValueStateDescriptor,
)
from forebay_testing import CallTry, FunctionHarness, VirtualClock

N = ValueStateDescriptor("n", int, default=0)
ROWS = [{"k": str(number), "n": 0} for number in range(50)]


class Service:
    """Answers after a second; fails, or hangs, as often as it is asked to for each key."""

    def __init__(self, *, failures: int = 0, hangs: int = 0) -> None:
        self.failures, self.hangs = failures, hangs
        self.now = self.most = self.tries = self.hedges = 0
        self.tried: dict[str, int] = {}
        self.times: list[float] = []

    async def __call__(self, key: str) -> str:
        self.tries += 1
        self.times.append(asyncio.get_running_loop().time())
        self.tried[key] = self.tried.get(key, 0) + 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(1 if self.tried[key] > self.hangs else 1_000)
        finally:
            self.now -= 1
        if self.tried[key] <= self.failures:
            raise ConnectionError(f"{key} failed")
        return f"{key} answered"


class Asks(KeyedProcessFunction[Any, Any, Any]):
    """Asks the service for a row's key, between a read and an update."""

    calls = Calls()

    def __init__(self, service: Service, calls: Calls | None = None) -> None:
        self.service = service
        self.calls = calls or Calls()

    def open(self, context: Any) -> None:
        self.n = context.get_state(N)

    async def process_element(self, row: Any, ctx: Any) -> Any:
        count = await self.n.async_value() + 1
        answer = await ctx.call(self.service, row["k"])
        await self.n.async_update(count)
        yield row["k"], answer

    def __reduce__(self) -> Any:  # the harness copies functions; the service is the test's
        return _again, (SERVICES.index(self.service), self.calls)


SERVICES: list[Service] = []


def _again(number: int, calls: Calls) -> Asks:
    return Asks(SERVICES[number], calls)


def harness(calls: Calls | None = None, **options: Any) -> tuple[FunctionHarness, Service]:
    behaviour = {name: options.pop(name) for name in ("failures", "hangs") if name in options}
    service = Service(**behaviour)
    SERVICES.append(service)
    return FunctionHarness(Asks(service, calls), "k", clock=VirtualClock(), **options), service


def figures(running: FunctionHarness) -> Any:
    (report,) = running._job.reports
    return report.figures


@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_calls_of_records_overlap_and_are_counted(backend: str) -> None:
    running, service = harness(backend=backend)
    with running:
        assert min(running.process(ROWS)) == ("0", "0 answered")
        found = figures(running)
    assert service.most == len(ROWS)
    assert (found["call_tries"], found["calls_in_flight_max"]) == (50, 50)
    assert (found["call_seconds_0.3"], found["call_seconds_3"]) == (0, 50)


def test_calls_in_flight_is_exact() -> None:
    running, service = harness(calls_in_flight=7)
    with running:
        running.process(ROWS)
        assert figures(running)["calls_in_flight_max"] == 7
    assert service.most == 7


def test_calls_of_one_record_share_the_limit() -> None:
    service = Service()

    async def many(row: Any, ctx: Any) -> Any:
        calls = (ctx.call(service, f"{row['k']} {number}") for number in range(20))
        return [(row["k"], len(await asyncio.gather(*calls)))]

    with FunctionHarness(many, "k", clock=VirtualClock(), calls_in_flight=3) as running:
        running._job._fresh = lambda _: many
        assert running.process(ROWS[:2]) == [("0", 20), ("1", 20)]
    assert service.most == 3


def test_retries_wait_and_leave_their_places_to_others() -> None:
    calls = Calls(timeout=100, retry=Retry(3, delay=5))
    running, service = harness(calls, failures=2, calls_in_flight=50)
    with running:
        assert len(running.process(ROWS)) == len(ROWS)
        found = figures(running)
    assert set(service.tried.values()) == {3}
    assert (found["call_tries"], found["call_retries"], found["call_failed"]) == (150, 100, 0)
    assert service.times[-1] - service.times[0] == pytest.approx(12, abs=0.1)


def test_the_last_error_goes_to_the_record_and_says_how_many_tries() -> None:
    calls = Calls(timeout=100, retry=Retry(1, on=ConnectionError))
    running, _ = harness(calls, failures=9)
    with running, pytest.raises(FunctionError, match="ConnectionError: 0 failed") as raised:
        running.process(ROWS[:1])
    cause: Any = raised.value.__cause__
    assert cause.__notes__ == ["raised by try 2 of a ctx.call"]


def test_a_try_that_takes_too_long_is_cancelled_and_made_again() -> None:
    calls = Calls(try_timeout=3, timeout=100, retry=Retry(1))
    running, service = harness(calls, hangs=1)
    with running:
        assert len(running.process(ROWS)) == len(ROWS)
        assert figures(running)["call_timeouts"] == len(ROWS)
    assert service.now == 0


def test_all_tries_together_have_a_time_limit() -> None:
    calls = Calls(timeout=5, retry=Retry(None))
    running, service = harness(calls, hangs=9)
    with running, pytest.raises(FunctionError, match="no answer within the timeout of 5 s"):
        running.process(ROWS[:1])
    assert service.tries == 1


def test_a_rate_spaces_the_tries_of_a_subtask() -> None:
    running, service = harness(Calls(rate=Rate(2)))
    with running:
        running.process(ROWS[:10])
    assert min(b - a for a, b in pairwise(service.times)) >= 0.49


def test_a_hedge_answers_first_and_ends_the_first_try() -> None:
    running, service = harness(Calls(hedge=2), hangs=1)
    with running:
        assert len(running.process(ROWS)) == len(ROWS)
        found = figures(running)
    assert (found["call_hedges"], found["call_hedges_won"]) == (50, 50)
    assert service.now == 0


def test_a_hedge_needs_a_free_place() -> None:
    running, service = harness(Calls(hedge=2, timeout=50), hangs=1, calls_in_flight=len(ROWS))
    with running, pytest.raises(FunctionError, match="no answer within the timeout of 50 s"):
        running.process(ROWS)
    assert service.tries == len(ROWS)
    assert service.now == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retry": Retry(1)}, "retry= needs timeout="),
        ({"try_timeout": 5, "timeout": 1}, "try_timeout is longer than timeout"),
        ({"rate": 5}, r"rate is a Rate\(...\), not 5"),
        ({"hedge": 0}, "hedge is above 0"),
    ],
)
def test_options_that_cannot_work(options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Calls(**options)


# -- clients ------------------------------------------------------------------------------------


class Connection:
    opened = 0

    def __init__(self) -> None:
        type(self).opened += 1
        self.number = type(self).opened
        self.closed = False

    async def ask(self) -> int:
        await asyncio.sleep(0.001)
        if self.number == 1:
            self.closed = True
            raise ClientBrokenError
        return self.number


@asynccontextmanager
async def connection() -> Any:
    yield Connection()


class UsesClient(KeyedProcessFunction[Any, Any, Any]):
    clients = Clients(db=connection)
    calls = Calls(timeout=100, retry=Retry(1))

    async def process_element(self, row: Any, ctx: Any) -> Any:
        yield row["k"], await ctx.call(self.ask, ctx)

    async def ask(self, ctx: Any) -> int:
        number: int = await ctx.clients.db.ask()
        return number


def test_a_broken_client_is_opened_again_once_for_all_records() -> None:
    Connection.opened = 0
    with FunctionHarness(UsesClient(), "k") as running:
        assert sorted(running.process(ROWS)) == sorted((row["k"], 2) for row in ROWS)
        assert figures(running)["call_retries"] == len(ROWS)
    assert Connection.opened == 2


# -- bare awaits --------------------------------------------------------------------------------


class Waits(KeyedProcessFunction[Any, Any, Any]):
    """Waits for a service without ``ctx.call``, before and after a state access."""

    now, most = 0, 0

    def open(self, context: Any) -> None:
        self.n = context.get_state(N)

    async def process_element(self, row: Any, ctx: Any) -> Any:
        await self.wait()
        count = await self.n.async_value() + 1
        await self.n.async_update(count)
        await self.wait()
        yield row["k"], count

    async def wait(self) -> None:
        kind = Waits
        kind.now += 1
        kind.most = max(kind.most, kind.now)
        await asyncio.sleep(1)
        kind.now -= 1


@pytest.mark.parametrize("each", [1, 5])
def test_no_record_starts_while_as_many_wait_for_the_loop(each: int) -> None:
    Waits.most = 0
    rows = [row for row in ROWS for _ in range(each)]
    with FunctionHarness(Waits(), "k", clock=VirtualClock(), calls_in_flight=4) as running:
        out = running.process(rows)
    assert out.count(("0", each)) == 1
    assert len(out) == len(rows)
    assert [count for key, count in out if key == "3"] == [*range(1, each + 1)]
    assert Waits.most == 4


def test_a_key_that_becomes_free_starts_nothing_above_the_limit() -> None:
    """Two rows of each key: the second one starts only where one record less is waiting."""
    most = now = 0

    async def first_waits(row: Any, ctx: Any) -> Any:
        nonlocal now, most
        if row["n"] == 0:
            return
        now += 1
        most = max(most, now)
        await asyncio.sleep(1)
        now -= 1

    rows = [{"k": key, "n": n} for n in (1, 0, 1, 1) for key in "abcdefgh"]
    with FunctionHarness(first_waits, "k", clock=VirtualClock(), calls_in_flight=3) as running:
        running._job._fresh = lambda _: first_waits
        running.process(rows)
    assert most == 3


class Locks(KeyedProcessFunction[Any, Any, Any]):
    """Holds a semaphore of the subtask around a state access that storage answers late."""

    def open(self, context: Any) -> None:
        self.n = context.get_state(N)
        self.one = asyncio.Semaphore(1)

    async def process_element(self, row: Any, ctx: Any) -> Any:
        async with self.one:
            await asyncio.sleep(0)
            await self.n.async_update(await self.n.async_value() + 1)
        yield row["k"], await self.n.async_value()


@pytest.mark.parametrize("limit", [1, 4])
def test_the_holder_of_a_semaphore_goes_on_at_the_limit(limit: int) -> None:
    options: Any = {"late_answers": 1, "calls_in_flight": limit, "drain_timeout": 100}
    with FunctionHarness(Locks(), "k", **options) as running:
        assert sorted(running.process(ROWS)) == sorted((row["k"], 1) for row in ROWS)


@pytest.mark.parametrize("limit", [1, 3])
def test_records_that_fail_alone_give_their_places_back(limit: int) -> None:
    async def fails(row: Any, ctx: Any) -> Any:
        task = asyncio.ensure_future(asyncio.sleep(1_000))
        await asyncio.sleep(1)
        del task
        raise ValueError(row["k"])

    options: Any = {"on_error": "column", "calls_in_flight": limit}
    with FunctionHarness(fails, "k", clock=VirtualClock(), **options) as running:
        out = running.process(ROWS[:10])
    assert {(one.key, one.type) for one in out} == {(str(n), "ValueError") for n in range(10)}
    assert all(isinstance(one, FailedRecord) for one in out)


# -- failures that a test injects ---------------------------------------------------------------


class Charges(KeyedProcessFunction[Any, Any, Any]):
    calls = Calls(timeout=100, retry=Retry(2, on=ConnectionError))

    async def process_element(self, row: Any, ctx: Any) -> Any:
        yield row["k"], await ctx.call(self.charge, row["k"], amount=5)

    async def charge(self, key: str, *, amount: int) -> str:
        CHARGED.append(key)
        return f"{key} pays {amount}"


CHARGED: list[str] = []


async def _loses_first_answers(call: CallTry) -> Any:
    answer = await call.make()
    if call.attempt == 1:
        raise ConnectionError("the answer was lost")
    return answer


async def _refuses_one(call: CallTry) -> Any:
    await asyncio.sleep(10)
    if call.key == "1":
        raise ValueError(f"no {call.kwargs['amount']} for {call.args[0]}")
    return await call.make()


def test_a_test_fails_calls_before_or_after_they_are_made() -> None:
    CHARGED.clear()
    options: Any = {"clock": VirtualClock(), "on_call": _loses_first_answers}
    with FunctionHarness(Charges(), "k", **options) as running:
        assert sorted(running.process(ROWS[:3])) == [(k, f"{k} pays 5") for k in "012"]
        assert figures(running)["call_retries"] == 3
    assert sorted(CHARGED) == [*"001122"]


def test_a_test_answers_in_place_of_a_service() -> None:
    CHARGED.clear()
    options: Any = {"clock": VirtualClock(), "on_call": _refuses_one, "on_error": "column"}
    with FunctionHarness(Charges(), "k", **options) as running:
        out = running.process(ROWS[:3])
    (failed,) = (one for one in out if isinstance(one, FailedRecord))
    assert (failed.key, failed.message) == ("1", "no 5 for 1")
    assert sorted(CHARGED) == ["0", "2"]


def test_on_call_needs_a_function_that_can_have_calls() -> None:
    with (
        FunctionHarness(Charges().process_element, "k", on_call=_refuses_one) as running,
        pytest.raises(ConfigurationError, match="on_call= is for functions that can have"),
    ):
        running.process(ROWS)
