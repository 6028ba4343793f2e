"""Histograms of durations, and their sums."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from forebay_state_api.metrics.histogram import Histogram


class Unread(Counter[int]):
    """Buckets that nobody may go through."""

    def __iter__(self) -> Any:
        pytest.fail("it looks at buckets that it does not change")

    items = keys = values = __iter__


def test_a_histogram_includes_others_at_the_cost_of_their_buckets() -> None:
    every, summed = Histogram(), Histogram()
    for number in range(1, 200):
        one = Histogram()
        one.add_times(number / 1_000, number)
        every.include(one)
        summed += one
    assert every.counts == summed.counts
    assert every.counts.total() == 199 * 100
    every.counts = Unread(every.counts)
    every.include(one)
    assert sum(dict.values(every.counts)) == 199 * 101
