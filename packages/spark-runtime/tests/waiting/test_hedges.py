"""Second calls for rows whose first call takes long, in virtual time."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from forebay_engine.calls.current_call import current_call
from forebay_state_api.calls.policies import Rate


def test_a_second_call_that_answers_first_wins_and_the_first_is_cancelled(drive, server_of):
    server = server_of(r0=[60, 1])
    driven = drive(server, range(3), hedge=5.0)
    assert driven.out == [0, 1, 2]
    assert driven.took_s == pytest.approx(6, abs=0.01)
    assert server.cancelled == [0]
    assert (driven.counts.hedges, driven.counts.hedges_won) == (1, 1)
    assert driven.left == server.live == 0


def test_a_first_call_that_answers_first_wins_and_the_second_is_cancelled(drive, server_of):
    server = server_of(r0=[7, 60])
    driven = drive(server, range(3), hedge=5.0)
    assert driven.out == [0, 1, 2]
    assert driven.took_s == pytest.approx(7, abs=0.01)
    assert server.cancelled == [0]
    assert (driven.counts.hedges, driven.counts.hedges_won) == (1, 0)
    assert driven.left == server.live == 0


@pytest.mark.parametrize("hedge", [0.1, 0.15, 3.0])
def test_second_calls_keep_to_the_rate(drive, hedge):
    begun = []

    async def fn(row, client):
        begun.append(asyncio.get_running_loop().time())
        await asyncio.sleep(5)
        return row

    driven = drive(fn, range(40), capacity=40, rate=Rate(20), hedge=hedge)
    assert driven.out == list(range(40))
    assert len(begun) == 40 + driven.counts.hedges
    gaps = [later - sooner for sooner, later in itertools.pairwise(begun)]
    assert min(gaps) >= 1 / 20 - 1e-6


def test_second_calls_are_made_with_turns_that_nobody_waits_for(drive, server_of, failed):
    server = server_of(r0=[60, 1], r1=[60, 1])
    driven = drive(server, range(2), rate=Rate(1), hedge=5.0, try_timeout=30.0, on_error=failed)
    assert driven.out == [0, 1]
    assert driven.counts.hedges_won == 2
    assert [at for _, at, _ in server.tries] == pytest.approx([0, 1, 5, 6], abs=0.01)


def test_both_in_the_same_moment(drive, server_of):
    server = server_of(**{f"r{row}": [7, 2] for row in range(50)})
    driven = drive(server, range(50), hedge=5.0)
    assert driven.out == list(range(50))
    assert driven.error is None


def test_a_second_call_that_fails_is_forgotten(drive, server_of):
    server = server_of(r0=[7, OSError("no")])
    assert drive(server, [0], hedge=5.0).out == [0]


def test_a_first_call_that_fails_leaves_the_second_one_to_decide(drive):
    calls = []

    async def fn(row, client):
        calls.append(current_call())
        if len(calls) == 1:
            await asyncio.sleep(6)
            raise OSError("no")
        await asyncio.sleep(3)
        return row

    driven = drive(fn, [0], hedge=5.0)
    assert driven.out == [0]
    assert driven.took_s == pytest.approx(8, abs=0.01)
    assert calls[0] == calls[1]


def test_when_both_fail_the_first_one_s_error_is_reported(drive):
    calls = []

    async def fn(row, client):
        calls.append(row)
        if len(calls) == 2:
            await asyncio.sleep(2)
            raise KeyError("second")
        await asyncio.sleep(6)
        raise OSError("first")

    driven = drive(fn, [0], hedge=5.0)
    assert "OSError: first" in str(driven.error)


def test_both_calls_end_with_the_time_of_the_try(drive, server_of, failed):
    server = server_of(r0=[60, 60])
    driven = drive(server, [0], hedge=5.0, try_timeout=8.0, on_error=failed)
    assert driven.out == [(0, "TimeoutError", 1)]
    assert driven.took_s == pytest.approx(8, abs=0.01)
    assert server.live == driven.left == 0


def test_the_second_call_alone_ends_with_the_time_of_the_try(drive, failed):
    calls = []

    async def fn(row, client):
        calls.append(row)
        await asyncio.sleep(6 if len(calls) == 1 else 60)
        raise OSError("no")

    driven = drive(fn, [0], hedge=5.0, try_timeout=8.0, on_error=failed)
    assert driven.out == [(0, "TimeoutError", 1)]
    assert driven.took_s == pytest.approx(8, abs=0.01)
    assert driven.left == 0


def test_a_second_call_that_would_end_the_process_is_forgotten(drive):
    calls = []

    async def fn(row, client):
        calls.append(row)
        if len(calls) == 2:
            raise SystemExit(3)
        await asyncio.sleep(7)
        return row

    assert drive(fn, [0], hedge=5.0).out == [0]
    assert calls == [0, 0]
