"""Arguments of the operators are checked when they are made; the error names the fault."""

from __future__ import annotations

from datetime import timedelta

import pytest

from forebay_state_api.calls.policies import Rate, Retry
from forebay_state_api.errors import ConfigurationError


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Retry(-1), "Retry.retries is a whole number from 0, not -1"),
        (lambda: Retry(True), "Retry.retries is a whole number"),
        (lambda: Retry(1, -1), "Retry.delay is 0 or more"),
        (lambda: Retry(1, "1s"), "Retry.delay is seconds or a timedelta"),
        (lambda: Retry(1, timedelta.max), "Retry.delay is at most 36500 days"),
        (lambda: Rate(1, 1e300), "Rate.per is at most 36500 days"),
        (lambda: Retry(1, float("nan")), "Retry.delay is seconds"),
        (lambda: Retry(1, 5, max_delay=1), "Retry.max_delay is shorter"),
        (lambda: Retry(1, multiplier=0.5), "Retry.multiplier is a number from 1"),
        (lambda: Retry(1, multiplier=timedelta(2)), "Retry.multiplier is a number"),
        (lambda: Retry(1, multiplier="2"), "Retry.multiplier is a number"),
        (lambda: Retry(1, multiplier=float("inf")), "Retry.multiplier is a number"),
        (lambda: Retry(1, jitter=-1), "Retry.jitter is 0 or more"),
        (lambda: Retry(1, on=int), "Retry.on is exception classes or a function"),
        (lambda: Retry(1, on=3), "Retry.on is exception classes or a function"),
        (lambda: Retry(1, on_result=3), "Retry.on_result is a function"),
        (lambda: Rate(0), "Rate.calls is a number above 0, not 0"),
        (lambda: Rate(-1), "Rate.calls is a number above 0"),
        (lambda: Rate(1, 0), "Rate.per is above 0"),
        (lambda: Rate(1, burst=0), "Rate.burst is a whole number from 1"),
        (lambda: Rate(1, partitions=0), "Rate.partitions is a whole number from 1"),
    ],
)
def test_bad_arguments_are_errors_where_they_are_made(make, says):
    with pytest.raises(ConfigurationError, match=says.replace(".", r"\.")):
        make()
