"""Reads of a state with TTL that are sent together: of whole maps and lists, and of cells."""

from __future__ import annotations

from datetime import timedelta

import pytest

from forebay_state_api import (
    KeyedProcessFunction,
    MapStateDescriptor,
    StateTtlConfig,
    combine_all,
)
from forebay_testing import KeyedJob
from forebay_testing.backends.subject import memory_storage
from forebay_testing.reference import ReferenceBackend


class Both(KeyedProcessFunction):
    """Iterates over a map and reads an entry of it, in one go."""

    def __init__(self, *, iterates_first):
        self.iterates_first = iterates_first

    def open(self, context):
        ttl = StateTtlConfig(timedelta(seconds=5))
        self.m = context.get_map_state(MapStateDescriptor("m", str, int, ttl=ttl))

    def process_element(self, row, ctx):
        if row[1] is not None:
            self.m.put("x", row[1])
            return []
        reads = [self.m.async_values, lambda: self.m.async_get("x")]
        asked = [read() for read in (reads if self.iterates_first else reversed(reads))]
        return combine_all(asked).then_apply(lambda answers: [(row[0], len(answers))])


@pytest.mark.parametrize("iterates_first", [True, False])
def test_an_iteration_and_a_read_of_an_entry(iterates_first):
    job = KeyedJob(ReferenceBackend, memory_storage())
    function = Both(iterates_first=iterates_first)
    job.run(function, [("a", 1), ("b", 2)])
    assert sorted(job.run(function, [("a", None), ("b", None)])) == [("a", 2), ("b", 2)]
