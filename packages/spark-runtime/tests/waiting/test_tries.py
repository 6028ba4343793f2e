"""Timeouts, retries, servers that ask for time, and rates; in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace

import pytest

from forebay_engine.calls.current_call import current_call
from forebay_engine.calls.operator_clients import OperatorClient
from forebay_engine.calls.retry import RecordTries, RetryPolicy, later
from forebay_state_api.calls.errors import ClientBrokenError, RetryLaterError
from forebay_state_api.calls.policies import Batch, Rate, Retry
from forebay_state_api.errors import ConfigurationError, FunctionError

# --- timeouts -----------------------------------------------------------------------------------


def test_a_call_that_runs_out_of_time_fails_the_batch_and_is_cancelled(drive, server_of):
    server = server_of(r3=[60])
    driven = drive(server, range(10), try_timeout=5.0)
    assert "row 3 raised TimeoutError: no answer within the try_timeout of 5 s" in str(driven.error)
    assert server.cancelled == [3]
    assert server.live == 0
    assert driven.took_s == pytest.approx(5, abs=0.01)
    assert driven.counts.timeouts == 1


def test_overall_time_is_over_all_tries(drive, server_of, failed):
    server = server_of(r0=[OSError("no")] * 1000)
    driven = drive(
        server,
        [0],
        timeout=10.0,
        retry=Retry(None, 3),
        on_error=failed,
    )
    assert driven.out == [(0, "OSError", 4)]
    assert server.times(0) == [0, 3, 6, 9]
    assert driven.took_s == pytest.approx(9)  # a try that would be too late is not waited for


def test_the_last_try_has_the_time_that_is_left(drive, server_of, failed):
    server = server_of(r0=[OSError("no"), 60])
    driven = drive(server, [0], timeout=10.0, try_timeout=8.0, retry=Retry(5, 6), on_error=failed)
    assert driven.out == [(0, "TimeoutError", 2)]
    assert driven.took_s == pytest.approx(10, abs=0.01)


def test_each_try_has_its_own_time(drive, server_of):
    server = server_of(r0=[60, 60, 1])
    driven = drive(server, [0], try_timeout=5.0, timeout=100.0, retry=Retry(2, 1))
    assert driven.out == [0]
    assert server.times(0) == pytest.approx([0, 6, 12], abs=0.01)
    assert driven.counts.timeouts == driven.counts.retries == 2
    assert server.cancelled == [0, 0]


def test_a_function_that_makes_an_answer_of_its_cancellation_is_out_of_time_all_the_same(
    drive, failed
):
    async def fn(row, client):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:  # the test: a function that swallows the cancellation
            return "late"

    driven = drive(fn, range(30), try_timeout=2.0, on_error=failed)
    assert driven.out == [(row, "TimeoutError", 1) for row in range(30)]
    assert driven.counts.timeouts == 30


def test_a_function_that_turns_its_cancellation_into_an_error_is_out_of_time(drive):
    async def fn(row, client):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise OSError("connection lost") from None

    driven = drive(fn, [0], try_timeout=2.0)
    assert isinstance(driven.error.__cause__, TimeoutError)


def test_timeouts_of_the_function_s_own_are_its_errors(drive, failed):
    async def fn(row, client):
        async with asyncio.timeout(1):
            await asyncio.sleep(60)

    driven = drive(fn, range(3), try_timeout=30.0, on_error=failed)
    assert driven.out == [(row, "TimeoutError", 1) for row in range(3)]
    assert driven.counts.timeouts == 0


@pytest.mark.parametrize("latency", [4.9999, 5.0, 5.0001, 5.0005, 5.002])
def test_no_answer_is_lost_when_it_races_the_timeout(drive, server_of, failed, latency):
    """Each row has one outcome, in its position, whatever comes first; nothing waits forever."""
    server = server_of(**{f"r{row}": [latency, latency, 1] for row in range(40)})
    driven = drive(
        server,
        range(40),
        try_timeout=5.0,
        timeout=100.0,
        retry=Retry(2, 0),
        on_error=failed,
    )
    assert driven.out == list(range(40))
    assert driven.error is None


def test_no_answer_is_lost_when_a_timeout_races_a_retry(drive, server_of, failed):
    """The overall time ends at the very moment at which the next try would begin."""
    server = server_of(r0=[OSError("no")] * 3, r1=[10 - 1e-9], r2=[10])
    driven = drive(
        server, range(3), timeout=10.0, retry=Retry(3, 10 / 3), on_error=failed, capacity=3
    )
    assert len(driven.out) == 3
    assert driven.out[0] in ((0, "OSError", 3), 0)
    assert driven.out[1] in ((1, "TimeoutError", 1), 1)
    assert driven.out[2] in ((2, "TimeoutError", 1), 2)


def test_waiting_for_a_turn_is_not_counted_as_time_of_the_call(drive, server_of):
    server = server_of()
    driven = drive(server, range(20), rate=Rate(1, 10), timeout=2.0)
    assert driven.out == list(range(20))


# --- retries ------------------------------------------------------------------------------------


def test_a_fixed_delay(drive, server_of):
    server = server_of(r1=[OSError("no"), OSError("no")])
    driven = drive(server, range(3), retry=Retry(2, 5), timeout=60.0)
    assert driven.out == [0, 1, 2]
    assert server.times(1) == [0, 5, 10]
    assert [attempt for row, _, attempt in server.tries if row == 1] == [1, 2, 3]


def test_growing_delays_with_a_limit(drive, server_of):
    server = server_of(r0=[OSError("no")] * 5)
    retry = Retry(5, 1, multiplier=2, max_delay=timedelta(seconds=5))
    driven = drive(server, [0], retry=retry, timeout=60.0)
    assert driven.out == [0]
    assert server.times(0) == [0, 1, 3, 7, 12, 17]


def test_backoff_is_each_record_s_own(drive, server_of):
    server = server_of(r0=[OSError("no")] * 4, r1=[OSError("no")], r2=[OSError("no")])
    driven = drive(server, range(3), capacity=1, retry=Retry(4, 1, multiplier=2), timeout=600.0)
    assert driven.out == [0, 1, 2]
    for row in (1, 2):
        first, second = server.times(row)
        assert second - first == pytest.approx(1)


def test_jitter_is_added_within_its_bound():
    policy = RetryPolicy(Retry(1000, 1, jitter=0.5))
    delays = {policy.delay_s(OSError(), RecordTries()) for _ in range(200)}
    assert len(delays) > 100
    assert min(delays) >= 1
    assert max(delays) <= 1.5


def test_a_delay_does_not_overflow():
    record = RecordTries()
    record.failures = 100_000
    retry = Retry(None, 1, multiplier=10, max_delay=60)
    assert RetryPolicy(retry).delay_s(OSError(), record) == 60


def test_the_last_error_is_reported_when_all_tries_failed(drive, server_of):
    server = server_of(r0=[OSError("one"), OSError("two"), OSError("three")])
    driven = drive(server, [0], retry=Retry(2, 1), timeout=60.0)
    assert "raised OSError: three at try 3" in str(driven.error)
    assert driven.counts.tries == 3


@pytest.mark.parametrize(
    ("on", "tries"),
    [
        (OSError, 3),
        ((KeyError, OSError), 3),
        (KeyError, 1),
        (lambda error: isinstance(error, OSError), 3),
        (lambda error: False, 1),
        (lambda error: 7, 3),
        (lambda error: timedelta(seconds=7), 3),
    ],
)
def test_which_errors_are_tried_again(drive, server_of, on, tries):
    server = server_of(r0=[OSError("no")] * 9)
    driven = drive(server, [0], retry=Retry(2, 7, on=on), timeout=60.0)
    assert isinstance(driven.error, FunctionError)
    assert server.times(0) == [0, 7, 14][:tries]


def test_answers_that_are_none_are_tried_again(drive, failed):
    answers = iter([-1, -1, 5, -1, -1, -1])

    async def fn(row, client):
        return next(answers)

    retry = Retry(2, 1, on_result=lambda answer: answer < 0)
    driven = drive(fn, range(2), capacity=1, retry=retry, timeout=60.0, on_error=failed)
    assert driven.out == [5, (1, "ValueError", 3)]


def test_retries_at_the_end_of_the_input_are_made(drive, server_of):
    server = server_of(**{f"r{row}": [OSError("no")] for row in range(10)})
    driven = drive(server, range(10), retry=Retry(1, 50), timeout=100.0)
    assert driven.out == list(range(10))
    assert driven.counts.retries == 10
    assert driven.took_s == pytest.approx(51)


def test_on_error_answers_for_the_row_in_its_place(drive, server_of, failed):
    server = server_of(r4=[ValueError("bad")])
    driven = drive(server, range(10), on_error=failed)
    assert driven.out == [0, 1, 2, 3, (4, "ValueError", 1), 5, 6, 7, 8, 9]
    assert driven.counts.failed == 1


def test_an_on_error_that_fails_is_named(drive, server_of):
    server = server_of(r4=[ValueError("bad")])
    driven = drive(server, range(10), on_error=lambda row, error, tries: 1 / 0)
    assert "on_error raised ZeroDivisionError: division by zero for row 4" in str(driven.error)


@pytest.mark.parametrize("said", ["soon", None, -1])
def test_a_retry_on_that_returns_nonsense_is_named(drive, server_of, said):
    server = server_of(r0=[OSError("no")])
    driven = drive(server, [0], retry=Retry(1, 1, on=lambda error: said), timeout=60.0)
    assert isinstance(driven.error, ConfigurationError)
    assert "Retry.on returned" in str(driven.error)


# --- servers that ask for time -----------------------------------------------------------------


def http(status, headers=None, where="error"):
    error = OSError(f"status {status}")
    owner = error
    if where != "error":
        owner = error.response = SimpleNamespace()
    setattr(owner, {"error": "status", "httpx": "status_code", "urllib": "code"}[where], status)
    owner.headers = headers or {}
    return error


def test_a_server_s_retry_after_is_kept_and_not_counted_as_failure(drive, server_of):
    server = server_of(r0=[http(429, {"Retry-After": "20"})] * 4 + [OSError("no")])
    driven = drive(server, [0], retry=Retry(1, 1), timeout=600.0)
    assert driven.out == [0]
    assert server.times(0) == [0, 20, 40, 60, 80, 81]
    assert driven.counts.laters == 4


def test_a_429_without_a_time_is_backed_off_and_not_counted_as_failure(drive, server_of):
    server = server_of(r0=[RetryLaterError()] * 4 + [OSError("no")])
    driven = drive(server, [0], retry=Retry(1, 1, multiplier=2), timeout=600.0)
    assert server.times(0) == [0, 1, 3, 7, 15, 16]
    assert driven.out == [0]


def test_a_429_is_waited_for_whatever_errors_are_tried_again(drive, server_of):
    server = server_of(r0=[RetryLaterError(3)])
    assert drive(server, [0], retry=Retry(0, 1, on=KeyError), timeout=60.0).out == [0]


def test_a_server_that_asks_for_more_time_than_there_is(drive, server_of):
    server = server_of(r0=[RetryLaterError(timedelta(hours=1))])
    driven = drive(server, [0], retry=Retry(5, 1), timeout=60.0)
    assert "asked to call later, in 3600 s" in str(driven.error)
    assert "the timeout of 60 s leaves no time for another try" in str(driven.error)
    assert driven.took_s == 0


def test_without_a_retry_policy_a_429_is_a_failure(drive, server_of, failed):
    driven = drive(server_of(r0=[http(429)]), [0])
    assert "status 429" in str(driven.error)
    driven = drive(server_of(r0=[http(429)]), [0], on_error=failed)
    assert driven.out == [(0, "OSError", 1)]
    assert driven.counts.laters == 1


@pytest.mark.parametrize(
    ("error", "after"),
    [
        (http(429, {"Retry-After": "20"}), 20),
        (http(503, {"retry-after": "7"}, "httpx"), 7),
        (http(429, {}, "urllib"), None),
        (http(429, {"Retry-After": "soon"}), None),
        (RetryLaterError(timedelta(minutes=1)), 60),
    ],
)
def test_what_servers_ask_for(error, after):
    assert later(error).after_s == after


def test_a_server_may_name_a_date():
    at = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    assert later(http(429, {"Retry-After": at})).after_s == pytest.approx(100, abs=5)


@pytest.mark.parametrize("error", [http(503), http(500), http(200), OSError("no"), KeyError(429)])
def test_other_errors_ask_for_nothing(error):
    assert later(error) is None


def test_a_call_out_of_time_names_the_line_that_it_waited_in(drive):
    async def fn(row, client):
        await asyncio.sleep(60)  # the line

    text = str(drive(fn, range(1), try_timeout=5.0).error)
    assert "raised TimeoutError: no answer within the try_timeout of 5 s" in text
    assert "await asyncio.sleep(60)  # the line" in text


# --- rates --------------------------------------------------------------------------------------


def test_tries_are_spaced(drive, server_of):
    server = server_of(r2=[OSError("no")])
    driven = drive(server, range(5), rate=Rate(2, per=10), retry=Retry(1, 0), timeout=600.0)
    assert sorted(at for _, at, _ in server.tries) == [0, 5, 10, 15, 20, 25]
    assert driven.out == list(range(5))


def test_a_burst_after_a_pause(drive, server_of):
    server = server_of()
    drive(server, range(8), rate=Rate(1, per=timedelta(seconds=1), burst=4), segment=4, gap=100)
    times = [at for _, at, _ in server.tries]
    assert times == [100, 100, 100, 100, 200, 200, 200, 200]


def most_within(times, span):
    return max(sum(start <= at < start + span for at in times) for start in times)


@pytest.mark.parametrize("burst", [1, 3])
@pytest.mark.parametrize(("capacity", "hedge"), [(100, None), (100, 0.4), (3, None)])
def test_a_client_that_is_opened_again_lets_no_turns_pile_up(drive, burst, capacity, hedge):
    begun = []

    @contextlib.asynccontextmanager
    async def resources():
        if begun:
            await asyncio.sleep(3)
        yield object()

    async def fn(row, client):
        begun.append(asyncio.get_running_loop().time())
        if row % 20 == 10 and current_call().attempt == 1:
            raise ClientBrokenError
        await asyncio.sleep(0.5)
        return row

    driven = drive(
        fn,
        range(100),
        capacity=capacity,
        hedge=hedge,
        engine={"client": OperatorClient(resources, "", "op")},
        rate=Rate(20, 1, burst=burst),
        retry=Retry(2, 0.01),
        timeout=600.0,
    )
    assert driven.out == list(range(100))
    begun = [round(at, 6) for at in begun]
    assert most_within(begun, 1) <= 20 + burst - 1
    assert most_within(begun, 0.049) <= burst


def test_a_loop_that_was_held_up_lets_no_turns_pile_up(drive):
    begun = []

    async def fn(row, client):
        loop = asyncio.get_running_loop()
        begun.append(loop.time())
        if row == 50:
            loop.now += 0.7
        return row

    drive(fn, range(100), rate=Rate(20, 1))
    assert most_within([round(at, 6) for at in begun], 1) <= 20


@pytest.mark.long
def test_turns_that_come_a_little_late_do_not_slow_the_rate_down(drive):
    """As with timers and busy loops; a pause does not count as a late turn."""
    begun = []

    async def fn(row, client):
        loop = asyncio.get_running_loop()
        begun.append(loop.time())
        if row % 20 == 10:
            loop.now += 0.008
        return row

    driven = drive(fn, range(2000), rate=Rate(1000, 1), segment=1000)
    assert driven.took_s == pytest.approx(2.02, abs=0.01)
    assert most_within(begun, 1) <= 1000

    begun.clear()
    drive(fn, range(6), rate=Rate(1000, 1), segment=2, gap=1)
    assert most_within(begun, 0.0009) == 1


def test_a_total_is_split_over_the_partitions():
    assert Rate(100, 1, partitions=10).interval_s == Rate(10, 1).interval_s == 0.1


# --- clients ------------------------------------------------------------------------------------


class Clients:
    """Numbered clients; a broken client is replaced by a new one."""

    def __init__(self):
        self.current = 0
        self.opening = False
        self.replaced = []

    async def replace(self, broken):
        await asyncio.sleep(1)
        self.replaced.append(broken)
        self.current += broken == self.current


def test_a_broken_client_is_replaced_and_the_call_tried_again(drive):
    clients = Clients()

    async def fn(row, client):
        if client == 0 and row >= 5:
            raise ClientBrokenError
        return client

    retry = Retry(1, 1, on=KeyError)
    driven = drive(fn, range(20), retry=retry, timeout=60.0, engine={"client": clients})
    assert driven.out == [0] * 5 + [1] * 15
    assert clients.current == 1


def test_without_a_retry_policy_a_broken_client_is_replaced_for_the_others(drive, failed):
    clients = Clients()

    async def fn(row, client):
        if client == 0 and row == 5:
            raise ClientBrokenError("gone")
        return client

    options = {"engine": {"client": clients}, "capacity": 1, "on_error": failed}
    driven = drive(fn, range(8), **options)
    assert driven.out == [0] * 5 + [(5, "ClientBrokenError", 1)] + [1] * 2


# --- functions that end the process --------------------------------------------------------------


@pytest.mark.parametrize("ending", [SystemExit(3), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("policy", [{}, {"try_timeout": 5.0}, {"batch": Batch(2)}])
def test_a_function_that_would_end_the_process_fails_the_batch(drive, ending, policy):
    async def fn(row, client):
        await asyncio.sleep(1)
        if row in (3, [2, 3]):
            raise ending
        return row

    driven = drive(fn, range(20), **policy)
    assert isinstance(driven.error, FunctionError)
    assert f"raised {type(ending).__name__}" in str(driven.error)


@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("on", lambda policy: policy.delay_s(ValueError("no"), RecordTries())),
        ("on_result", lambda policy: policy.refusal("answer")),
    ],
)
def test_a_policy_that_fails_is_named_with_its_lines(name, ask):
    def fails(about):
        raise KeyError("boom")

    said = rf"^Retry\.{name} raised KeyError: 'boom' for "
    with pytest.raises(FunctionError, match=said) as failure:
        ask(RetryPolicy(Retry(1, **{name: fails})))
    assert str(failure.value).splitlines()[-1].strip() == 'raise KeyError("boom")'
