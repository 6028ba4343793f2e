"""Calls for several rows at once: their sizes, and an outcome for each row."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from forebay_engine.calls.current_call import current_call
from forebay_state_api.calls.errors import RetryLaterError
from forebay_state_api.calls.policies import Batch, Retry
from forebay_state_api.errors import ConfigurationError


class Service:
    """Answers a second after each call; rows in ``bad`` fail that many times."""

    def __init__(self, bad=None, error=OSError):
        self.bad = dict(bad or {})
        self.error = error
        self.calls = []

    async def __call__(self, rows, client):
        now = round(asyncio.get_running_loop().time() - 1000, 3)
        self.calls.append((now, list(rows)))
        await asyncio.sleep(1)
        return [self.outcome(row) for row in rows]

    def outcome(self, row):
        if self.bad.get(row):
            self.bad[row] -= 1
            return self.error(f"bad {row}")
        return row * 10


def failed(row, error, tries):
    return row, str(error), tries


def test_calls_are_full_while_there_are_rows(drive):
    service = Service()
    driven = drive(service, range(100), batch=Batch(8), segment=30)
    assert driven.out == [row * 10 for row in range(100)]
    sizes = [len(rows) for _, rows in service.calls]
    assert sizes == [8] * 12 + [4]
    assert driven.counts.in_flight_max == 10


def test_a_call_waits_for_rows_only_with_within(drive):
    service = Service()
    drive(service, range(6), batch=Batch(4), segment=2, gap=10)
    assert service.calls == [(10, [0, 1]), (20, [2, 3]), (30, [4, 5])]


def test_a_call_waits_for_more_rows_for_so_long(drive):
    service = Service()
    batch = Batch(4, within=timedelta(seconds=15))
    drive(service, range(10), batch=batch, segment=2, gap=10)
    assert service.calls == [(20, [0, 1, 2, 3]), (40, [4, 5, 6, 7]), (50, [8, 9])]


def test_a_call_that_waits_goes_out_when_the_time_is_over(drive):
    service = Service()
    drive(service, range(4), batch=Batch(4, within=5), segment=2, gap=10)
    assert [at for at, _ in service.calls] == [15, 20]


def test_rows_that_failed_are_tried_again_without_the_others(drive):
    service = Service({1: 1, 3: 2})
    driven = drive(service, range(5), batch=Batch(5), retry=Retry(2, 10), timeout=60.0)
    assert service.calls == [(0, [0, 1, 2, 3, 4]), (11, [1, 3]), (22, [3])]
    assert driven.out == [0, 10, 20, 30, 40]


def test_each_row_counts_its_own_failures(drive):
    """Row 1 has to wait once, which is not a failure; row 2 fails once too often."""

    class Mixed(Service):
        def outcome(self, row):
            self.error = RetryLaterError if row == 1 else OSError
            if row == 1 and self.bad.get(row):
                self.bad[row] -= 1
                return RetryLaterError(3)
            return super().outcome(row)

    service = Mixed({1: 3, 2: 2})
    driven = drive(
        service, range(3), batch=Batch(3), retry=Retry(1, 1), timeout=60.0, on_error=failed
    )
    assert driven.out == [0, 10, (2, "bad 2", 2)]
    assert [at for at, _ in service.calls] == [0, 4, 8, 12]


def test_a_call_that_raises_has_failed_for_all_of_its_rows(drive):
    calls = []

    async def fn(rows, client):
        calls.append(list(rows))
        if len(calls) == 1:
            raise OSError("down")
        return rows

    driven = drive(fn, range(3), batch=Batch(3), retry=Retry(1, 1), timeout=60.0)
    assert driven.out == [0, 1, 2]
    assert calls == [[0, 1, 2]] * 2


def test_a_call_that_runs_out_of_time_has_failed_for_all_of_its_rows(drive):
    async def fn(rows, client):
        await asyncio.sleep(60)

    driven = drive(fn, range(4), batch=Batch(2), try_timeout=5.0, on_error=failed)
    text = "no answer within the try_timeout of 5 s"
    assert driven.out == [(row, text, 1) for row in range(4)]


@pytest.mark.parametrize(
    ("answer", "says"),
    [([1], "it returned 1"), (None, "it returned None"), ({0: 1, 1: 2, 2: 3}, "it returned {")],
)
def test_a_function_that_returns_no_outcome_for_each_row_fails_the_batch(drive, answer, says):
    async def fn(rows, client):
        return answer

    driven = drive(fn, range(3), batch=Batch(3), on_error=failed)
    assert "a list with one outcome for each of its 3 rows; " + says in str(driven.error)


def test_slow_rows_do_not_let_the_window_grow(drive):
    most = []

    async def fn(rows, client):
        if 0 in rows:
            await asyncio.sleep(100)
        most.append(max(rows))
        if 0 in rows:
            assert max(most) < 10 * 7 + 20
        return rows

    driven = drive(fn, range(300), batch=Batch(7), capacity=10, buffer=20)
    assert driven.out == list(range(300))


def test_a_call_knows_the_keys_of_its_rows(drive):
    async def fn(rows, client):
        await asyncio.sleep(0.1)
        return [current_call()] * len(rows)

    driven = drive(fn, range(5), batch=Batch(3), engine={"key_of": "k{}".format})
    assert driven.out[0].keys == ("k0", "k1", "k2")
    assert driven.out[4].keys == ("k3", "k4")
    assert driven.out[4].key == "k3"


def test_a_second_call_for_the_rows_of_a_slow_one(drive):
    calls = []

    async def fn(rows, client):
        calls.append(rows)
        await asyncio.sleep(60 if len(calls) == 1 else 1)
        return rows

    driven = drive(fn, range(6), batch=Batch(3), hedge=4.0)
    assert driven.out == list(range(6))
    assert driven.took_s == pytest.approx(5, abs=0.01)


@pytest.mark.parametrize("bad", [0, -1, True, "8"])
def test_bad_sizes(bad):
    with pytest.raises(ConfigurationError, match=r"Batch\.size is a whole number from 1"):
        Batch(bad)
    with pytest.raises(ConfigurationError, match=r"Batch\.within"):
        Batch(1, within=-1)
