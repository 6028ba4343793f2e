"""Order, capacity, buffer, keys and the end of the input, in virtual time."""

from __future__ import annotations

import asyncio
import random

import pytest

from forebay_engine.calls.current_call import current_call
from forebay_state_api.calls.policies import Retry
from forebay_state_api.errors import FunctionError


class Calls:
    """A function with a set duration for each row; it records the calls under way."""

    def __init__(self, latency):
        self.latency = latency
        self.live = self.peak = 0
        self.began = []
        self.ended = []
        self.cancelled = []

    async def __call__(self, row, client):
        self.live += 1
        self.peak = max(self.peak, self.live)
        self.began.append(row)
        try:
            await asyncio.sleep(self.latency(row))
        except asyncio.CancelledError:
            self.cancelled.append(row)
            raise
        finally:
            self.live -= 1
        self.ended.append(row)
        return row * 2


def doubled(rows):
    return [row * 2 for row in rows]


@pytest.mark.parametrize("buffer", [0, 3, 10_000])
@pytest.mark.parametrize("segment", [1, 7, 1000])
def test_answers_come_in_the_order_of_the_rows(drive, buffer, segment):
    chance = random.Random(1)
    calls = Calls(lambda row: chance.random())
    driven = drive(calls, range(300), buffer=buffer, segment=segment)
    assert driven.out == doubled(range(300))
    assert calls.peak == driven.counts.in_flight_max == 10
    assert driven.left == 0


def test_unordered_answers_come_as_they_finish(drive):
    calls = Calls(lambda row: 10.0 if row == 0 else 1.0 + row / 1000)
    driven = drive(calls, range(20), ordered=False, segment=1000)
    assert driven.out == doubled(calls.ended)
    assert driven.out[-1] == 0


def test_unordered_answers_do_not_wait_for_a_slow_one(drive):
    seen = []

    async def fn(row, client):
        if row == 0:
            await asyncio.sleep(1000)
            seen.append(len(driven_out()))
        return row

    def driven_out():
        return engines[0].out

    engines = []

    class Keep(type(drive)):
        async def _run(self, driven, *args):
            engines.append(driven)
            await super()._run(driven, *args)

    driven = Keep()(fn, range(5000), ordered=False, segment=1000)
    assert sorted(driven.out) == list(range(5000))
    assert seen[0] >= 5000 - 1024


def test_more_calls_than_capacity_are_never_under_way(drive):
    calls = Calls(lambda row: row % 5)
    assert drive(calls, range(100), capacity=1).out == doubled(range(100))
    assert calls.peak == 1


@pytest.mark.parametrize(("capacity", "buffer"), [(4, 0), (4, 5), (10, 30)])
def test_a_slow_head_stops_the_input_at_capacity_and_buffer(drive, capacity, buffer):
    begun = []

    async def fn(row, client):
        begun.append(row)
        if row == 0:
            await asyncio.sleep(100)
            assert len(begun) == capacity + buffer
        else:
            await asyncio.sleep(0.001)
        return row

    driven = drive(fn, range(200), capacity=capacity, buffer=buffer)
    assert driven.out == list(range(200))
    assert driven.error is None
    assert driven.counts.blocked_max == capacity + buffer - 1


@pytest.mark.long
def test_a_heavy_tail_costs_little_with_a_buffer_and_much_without(drive):
    latency = lambda row: 0.2 if row % 100 == 50 else 0.01
    ideal = (0.2 + 99 * 0.01) * 20 / 20
    with_buffer = drive(Calls(latency), range(2000), capacity=20)
    without = drive(Calls(latency), range(2000), capacity=20, buffer=0)
    assert with_buffer.took_s < 1.3 * ideal
    assert without.took_s > 3 * ideal


def test_input_that_comes_slowly_is_called_as_it_comes(drive):
    """The loop stays free: calls end while the input has no rows."""
    calls = Calls(lambda row: 0.5)
    driven = drive(calls, range(20), segment=1, gap=1.0)
    assert driven.out == doubled(range(20))
    assert driven.took_s == pytest.approx(20.5)
    assert driven.counts.in_flight_max == 1
    assert driven.counts.drain_s == pytest.approx(0.5)


def test_no_rows_at_all(drive):
    driven = drive(Calls(lambda row: 1), [])
    assert driven.out == []
    assert driven.error is None


def test_a_function_that_never_waits_is_called_in_order(drive):
    begun = []

    async def fn(row, client):
        begun.append(row)
        return row

    driven = drive(fn, range(5000), segment=1000)
    assert driven.out == begun == list(range(5000))
    assert driven.counts.in_flight_max == 1
    assert driven.counts.tries == driven.counts.rows == 5000


@pytest.mark.long
def test_no_task_and_no_timer_for_each_record(drive):
    """A thousand calls wait, with all limits set."""
    most = [0, 0]

    async def fn(row, client):
        loop = asyncio.get_running_loop()
        most[0] = max(most[0], len(asyncio.all_tasks()))
        most[1] = max(most[1], len(loop._scheduled))
        await asyncio.sleep(0)
        return row

    drive(fn, range(1000), segment=100, try_timeout=5.0, timeout=9.0)
    assert most[0] <= 10 + 2
    assert most[1] <= 3


@pytest.mark.parametrize("policy", [{}, {"timeout": 50.0}, {"ordered": False}])
def test_the_first_failure_ends_all_and_only_a_prefix_is_out(drive, policy):
    calls = Calls(lambda row: 0.01 if row < 50 else 100)

    async def fn(row, client):
        if row == 50:
            await asyncio.sleep(0.005)
            raise RuntimeError("boom")
        return await calls(row, client)

    driven = drive(fn, range(1000), **policy)
    assert isinstance(driven.error, FunctionError)
    assert "row 50 raised RuntimeError: boom" in str(driven.error)
    assert isinstance(driven.error.__cause__, RuntimeError)
    assert calls.live == 0
    assert calls.cancelled
    assert len(driven.out) <= 50
    assert sorted(driven.out) == doubled(range(1000))[: len(driven.out)] or policy
    assert driven.took_s < 1
    assert driven.left == 0


@pytest.mark.parametrize("policy", [{}, {"timeout": 50.0}])
def test_a_cancellation_from_within_is_a_failure_and_no_hang(drive, policy):
    async def fn(row, client):
        never = asyncio.get_running_loop().create_future()
        if row == 5:
            never.cancel()
            await never
        return row

    driven = drive(fn, range(10), **policy)
    assert "row 5" in str(driven.error)


@pytest.mark.parametrize("policy", [{"try_timeout": 100.0}, {}, {"hedge": 100.0}])
def test_a_cancellation_from_outside_is_not_taken_for_a_timeout(drive, policy):
    async def fn(row, client):
        if row == 3:
            asyncio.get_running_loop().call_later(1, outer.cancel)
        await asyncio.sleep(10)

    outer = None

    class Cancelled(type(drive)):
        async def _run(self, *args):
            nonlocal outer
            outer = asyncio.create_task(super()._run(*args))
            with pytest.raises(asyncio.CancelledError):
                await outer

    driven = Cancelled()(fn, range(20), **policy)
    assert driven.out == []


# --- keys ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("ordered", [True, False])
def test_calls_of_one_key_run_one_after_another_in_order(drive, ordered):
    chance = random.Random(2)
    busy, log = set(), {}

    async def fn(row, client):
        key = row % 7
        assert key not in busy
        busy.add(key)
        log.setdefault(key, []).append(row)
        await asyncio.sleep(chance.random())
        busy.remove(key)
        return row

    driven = drive(fn, range(700), keys=lambda row: row % 7, ordered=ordered)
    assert driven.error is None
    assert sorted(driven.out) == list(range(700))
    assert driven.out == list(range(700)) or not ordered
    assert all(rows == sorted(rows) for rows in log.values())


def test_rows_of_a_hot_key_take_no_capacity_from_others(drive):
    """Half of the rows have one key and take 100 s; the others run at the same time."""
    ended = {}

    async def fn(row, client):
        await asyncio.sleep(1)
        ended[row] = asyncio.get_running_loop().time()
        return row

    hot = lambda row: "hot" if row % 2 else row
    driven = drive(fn, range(200), keys=hot, capacity=4)
    assert driven.out == list(range(200))
    assert driven.took_s == pytest.approx(100, abs=2)
    others = max(at for row, at in ended.items() if row % 2 == 0) - 1000
    assert others == pytest.approx(100 / 3, abs=2)
    assert driven.counts.in_flight_max == 4


WINDOWS = [(1, 0), (2, 0), (2, 1), (3, 2), (7, 20), (10, 100)]


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(("capacity", "buffer"), WINDOWS)
@pytest.mark.parametrize(
    "policy", [{}, {"hedge": 0.3}, {"retry": Retry(9, 0.2), "timeout": 1e6}], ids=str
)
def test_a_full_window_keeps_the_order_of_calls_of_a_key(drive, capacity, buffer, ordered, policy):
    """A worker that the window admits comes after others that take rows at the same moment."""
    chance = random.Random(4)
    key_of = lambda row: row // 2 % 9 if row % 11 else "hot"
    log = {}

    async def fn(row, client):
        log.setdefault(key_of(row), []).append(row)
        await asyncio.sleep(chance.choice([0, 0, 0, 0.5, 3]))
        if "retry" in policy and chance.random() < 0.3:
            raise OSError("told to")
        return row

    driven = drive(
        fn, range(400), keys=key_of, ordered=ordered, capacity=capacity, buffer=buffer, **policy
    )
    assert driven.error is None
    assert sorted(driven.out) == list(range(400))
    assert all(rows == sorted(rows) for rows in log.values())


@pytest.mark.parametrize("buffer", [0, 3])
@pytest.mark.parametrize("ordered", [True, False])
def test_waiting_rows_of_a_key_are_bounded(drive, buffer, ordered):
    """Rows taken and not answered are at most capacity plus buffer."""
    keys = lambda row: "hot" if row < 150 else row
    begun = []

    async def fn(row, client):
        begun.append(row)
        await asyncio.sleep(1)
        return row

    driven = drive(fn, range(200), keys=keys, capacity=4, buffer=buffer, ordered=ordered)
    assert driven.error is None
    assert sorted(driven.out) == list(range(200))
    assert begun.index(150) >= 150 - 4 - buffer


# --- the current call ---------------------------------------------------------------------------


def test_a_call_knows_its_key_through_waits_and_in_tasks(drive):
    async def fn(row, client):
        first = current_call()
        await asyncio.sleep(row % 3)
        task = asyncio.create_task(within())
        return first, current_call(), await task

    async def within():
        return current_call()

    driven = drive(fn, range(30), engine={"key_of": "q/{}".format})
    for row, calls in enumerate(driven.out):
        assert {call.key for call in calls} == {f"q/{row}"}
        assert {call.attempt for call in calls} == {1}


def test_outside_of_a_call_it_is_a_lookup_error():
    with pytest.raises(LookupError, match="for functions that an ordered_wait calls"):
        current_call()


class Stubborn:
    """Ignores its cancellation."""

    def __init__(self, then):
        self.then = then
        self.calls = 0

    async def __call__(self, row, client):
        self.calls += 1
        try:
            await asyncio.sleep(1 if row == 3 else 100)
        except asyncio.CancelledError:
            return self.then(row)
        raise RuntimeError("boom")


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("then", [lambda row: row, lambda row: 1 / 0])
@pytest.mark.parametrize("policy", [{}, {"timeout": 50.0}, {"hedge": 90.0}])
def test_calls_that_ignore_the_end_have_no_answer_and_no_successor(drive, policy, then, ordered):
    fn = Stubborn(then)
    driven = drive(fn, range(1000), ordered=ordered, **policy)
    assert "row 3 raised RuntimeError: boom" in str(driven.error)
    assert driven.out == []
    assert fn.calls == 10
    assert driven.took_s == pytest.approx(1)
    assert driven.left == 0
