"""Entries of the offset log that get and lose the offsets of ticks."""

from __future__ import annotations

import pytest

from forebay_spark_runtime.driver.tick_entries import with_sources
from forebay_state_api.errors import ConfigurationError

TICK = '{"forebayTick": 5}'
FIRST = '{"forebayTick": 0}'
FILE = '{"logOffset":0}'
HEAD = 'v1\n{"batchWatermarkMs":0}'
HEAD_2 = 'v2\n{"batchWatermarkMs":0}'


def entry(*offsets, head=HEAD):
    return "\n".join([head, *offsets])


@pytest.mark.parametrize(
    ("before", "sources", "after"),
    [
        (entry(FILE), [False, True], entry(FILE, FIRST)),
        (entry(FILE, "-"), [False, False, True, True], entry(FILE, "-", FIRST, FIRST)),
        (entry(FILE, TICK), [False], entry(FILE)),
        (entry("-", TICK, TICK), [False, True], entry("-", TICK)),
        (entry(FILE, TICK), [False, True], None),
        (entry(FILE, TICK, FILE), [False, True, False], None),
        (entry(FILE), [False], None),
        (
            entry("0:" + FILE, head=HEAD_2),
            [False, True],
            entry("0:" + FILE, "1:" + FIRST, head=HEAD_2),
        ),
        (entry("1:" + TICK, "0:" + FILE, head=HEAD_2), [False], entry("0:" + FILE, head=HEAD_2)),
        (entry("1:" + TICK, "0:" + FILE, head=HEAD_2), [False, True], None),
        (entry("clicks:" + FILE, head=HEAD_2), [False, True], None),
        (entry("5", "[1]", '{"forebayTick":1,"x":2}'), [False] * 3, None),
    ],
)
def test_an_entry_gets_the_ticks_of_the_plan(before, sources, after):
    assert with_sources(before, sources) == after
    if after is not None:
        assert with_sources(after, sources) is None, "a second time changes nothing"


@pytest.mark.parametrize(
    ("before", "sources"),
    [
        (entry(FILE, FILE), [False, True, False]),
        (entry(FILE, TICK, FILE), [False, False]),
        (entry(FILE), [True, False]),
        (entry(FILE), [False, False, True]),
        (entry(FILE, FILE, TICK), [False]),
        (entry("1:" + TICK, "0:" + FILE, "2:" + FILE, head=HEAD_2), [False, False]),
    ],
)
def test_other_sources_are_left_alone(before, sources):
    with pytest.raises(ConfigurationError, match="only if they are its last source"):
        with_sources(before, sources)
