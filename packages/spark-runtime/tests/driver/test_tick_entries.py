"""Entries of the offset log that get and lose the offsets of ticks."""

from __future__ import annotations

import pytest

from forebay_spark_runtime.driver.tick_entries import with_sources, with_ticks_last
from forebay_state_api.errors import ConfigurationError

TICK = '{"forebayTick": 5}'
FIRST = '{"forebayTick": 0}'
FILE = '{"logOffset":0}'
OTHER = '{"logOffset":7}'
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
    changed = with_sources(before, sources)
    assert (None if changed is None else changed.text) == after
    if changed is not None:
        assert changed.moved == {}
        assert with_sources(after, sources) is None, "a second time changes nothing"


@pytest.mark.parametrize(
    ("before", "sources", "after", "moved"),
    [
        (entry(FILE, OTHER), [False, True, False], entry(FILE, FIRST, OTHER), {1: 2}),
        (entry(FILE, TICK, OTHER), [False, False], entry(FILE, OTHER), {2: 1}),
        (entry(FILE, TICK, OTHER), [False, False, True], entry(FILE, OTHER, TICK), {2: 1}),
        (entry(FILE), [True, False], entry(FIRST, FILE), {0: 1}),
        (
            entry(FILE, OTHER),
            [True, False, True, False],
            entry(FIRST, FILE, FIRST, OTHER),
            {0: 1, 1: 3},
        ),
        (
            entry("1:" + TICK, "0:" + FILE, "2:" + OTHER, head=HEAD_2),
            [False, False],
            entry("0:" + FILE, "1:" + OTHER, head=HEAD_2),
            {2: 1},
        ),
    ],
)
def test_sources_behind_ticks_get_other_numbers(before, sources, after, moved):
    changed = with_sources(before, sources)
    assert (changed.text, changed.moved) == (after, moved)
    assert with_sources(after, sources) is None


@pytest.mark.parametrize(
    ("before", "sources"),
    [
        (entry(FILE), [False, False, True]),
        (entry(FILE, FILE, TICK), [False]),
        (entry(FILE, TICK), [False, False]),
    ],
)
def test_no_other_source_comes_or_goes(before, sources):
    with pytest.raises(ConfigurationError, match="and no other source"):
        with_sources(before, sources)


def test_ticks_of_a_plan_that_is_not_known_are_last():
    assert with_ticks_last(entry(FILE), 2) == entry(FILE, FIRST, FIRST)
    assert with_ticks_last(entry(FILE, TICK), 0) == entry(FILE)
    assert with_ticks_last(entry(FILE, TICK), 1) is None
    with pytest.raises(ConfigurationError, match="a source behind those of ticks="):
        with_ticks_last(entry(FILE, TICK, OTHER), 0)
    with pytest.raises(ConfigurationError, match="sources have names"):
        with_ticks_last(entry("clicks:" + FILE, head=HEAD_2), 1)
