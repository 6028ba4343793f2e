"""How a TTL treats a cell, an element or an entry, in every kind of state."""

from __future__ import annotations

from datetime import timedelta

import pytest

from forebay_engine.states.list import KeyedListState
from forebay_engine.states.reducing import KeyedReducingState
from forebay_engine.states.ttl import TtlListState, TtlMergingState, TtlPolicy, with_ttl
from forebay_state_api import CleanupOnRead, StateTtlConfig, StateVisibility, UpdateType
from forebay_state_api.contract.changes import ABSENT
from forebay_state_api.metrics.engine import EngineMetrics

NOW = 1_000
OLD, LIVE = (990, "old"), (991, "live")
RENEWED = (NOW, "live")
RENEWS = UpdateType.ON_READ_AND_WRITE
SHOWS = StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP


def policy(**config):
    return TtlPolicy(StateTtlConfig(timedelta(microseconds=10), **config), NOW, EngineMetrics())


@pytest.mark.parametrize(
    ("config", "of_live", "of_old"),
    [
        ({}, (LIVE, None), (ABSENT, ABSENT)),
        ({"cleanup": ()}, (LIVE, None), (ABSENT, None)),
        ({"update_type": RENEWS}, (LIVE, RENEWED), (ABSENT, ABSENT)),
        ({"update_type": RENEWS, "cleanup": ()}, (LIVE, RENEWED), (ABSENT, None)),
        ({"visibility": SHOWS}, (LIVE, None), (OLD, ABSENT)),
        ({"visibility": SHOWS, "cleanup": ()}, (LIVE, None), (OLD, ABSENT)),
        ({"visibility": SHOWS, "cleanup": [CleanupOnRead()]}, (LIVE, None), (OLD, ABSENT)),
    ],
)
def test_what_a_read_sees_and_what_it_leaves(config, of_live, of_old):
    one = policy(**config)
    assert one.seen(LIVE) == of_live
    assert one.seen(OLD) == of_old
    assert one.seen(ABSENT) == (ABSENT, None)
    assert [one.live(cell) for cell in (LIVE, OLD, ABSENT)] == [LIVE, ABSENT, ABSENT]
    assert one.writes == any(left is not None for _, left in (of_live, of_old))
    if LIVE[0] > one.plain_after:
        assert of_live == (LIVE, None), "a read that asks nobody sees the same"


@pytest.mark.parametrize(
    ("config", "cells", "visible", "left"),
    [
        ({}, [], [], None),
        ({}, [LIVE, LIVE], [LIVE, LIVE], None),
        ({}, [LIVE, OLD, LIVE], [LIVE, LIVE], [LIVE, LIVE]),
        ({}, [OLD], [], []),
        ({"cleanup": ()}, [OLD, LIVE], [LIVE], None),
        ({"update_type": RENEWS}, [LIVE, OLD], [LIVE], [RENEWED]),
        ({"update_type": RENEWS, "cleanup": ()}, [LIVE, OLD], [LIVE], [RENEWED, OLD]),
        ({"update_type": RENEWS, "cleanup": ()}, [OLD], [], None),
        ({"visibility": SHOWS}, [OLD, LIVE], [OLD, LIVE], [LIVE]),
    ],
)
def test_elements_are_seen_one_by_one(config, cells, visible, left):
    assert policy(**config).seen_all(cells) == (visible, left)


def test_each_kind_is_given_what_its_shape_does_once():
    class Kind(KeyedListState):
        __slots__ = ("more",)

    made = with_ttl(Kind)
    assert made is with_ttl(Kind)
    assert made.__mro__.index(TtlListState) < made.__mro__.index(Kind)
    assert issubclass(with_ttl(KeyedReducingState), TtlMergingState)
