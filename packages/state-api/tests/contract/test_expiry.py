"""The rule by which cells expire, and a clock that may advance while they are checked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from forebay_state_api import StateTtlConfig
from forebay_state_api.contract.backend import NO_TIME
from forebay_state_api.contract.expiry import Deadline, Expiry, running_clock

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST, LAST = (
    (at - EPOCH) // timedelta(microseconds=1)
    for at in (datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC))
)


@pytest.mark.parametrize("ttl", [timedelta(microseconds=1), timedelta(days=1), timedelta.max])
def test_the_rule_goes_as_plain_data_and_fits_into_64_bits(ttl):
    expiry = StateTtlConfig(ttl).expiry
    assert Expiry.of(expiry.plain) == expiry
    for now_us in (NO_TIME, FIRST, 0, LAST):
        assert -(1 << 63) <= expiry.until_us(now_us) < now_us
    assert expiry.until_us(NO_TIME) < FIRST, "without a time nothing has expired"


@pytest.mark.parametrize("ttl", [timedelta(microseconds=1), timedelta(days=1), timedelta.max])
@pytest.mark.parametrize("time_us", [FIRST, 0, LAST])
def test_data_expire_at_the_first_moment_whose_limit_reaches_their_time(ttl, time_us):
    expiry = StateTtlConfig(ttl).expiry
    moment = expiry.expires_us(time_us)
    assert expiry.until_us(moment - 1) < time_us <= expiry.until_us(moment)


def test_what_lives_for_ever_outlives_every_date():
    assert StateTtlConfig(timedelta.max).expiry.until_us(LAST) < FIRST


def test_the_clock_is_read_every_so_many_cells_however_they_come():
    times = iter([200, 150, 300])
    deadline = Deadline(Expiry(10), 100, 3, lambda: next(times))
    parts = [[*deadline.steps(cells)] for cells in (2, 0, 3, 4, 2)]
    assert parts == [[(2, 90)], [], [(1, 90), (2, 190)], [(1, 190), (3, 190)], [(2, 290)]]
    assert deadline.until_us == 290


def test_without_every_the_clock_stands_still():
    deadline = Deadline(Expiry(10), 100, clock=lambda: pytest.fail("it is not read"))
    assert [*deadline.steps(7)] == [(7, 90)]
    assert [*deadline.steps(1)] == [(1, 90)]


def test_a_clock_that_is_not_given_goes_on_from_the_micro_batch():
    readings = [until_us for _, until_us in Deadline(Expiry(10_000_000), 100, 1).steps(3)]
    assert readings == sorted(readings)
    assert readings[-1] < 60_000_000, "the machine's own clock is at 1,700,000,000,000,000 µs"
    assert 100 <= running_clock(100)() < 60_000_000
