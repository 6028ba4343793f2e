"""Ranges of keys, and entries that keep an index of their order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from forebay_state_api.contract.key_range import KeyRange, OrderedEntries

NUMBERS = st.integers(0, 9)
CHANGES = st.one_of(
    st.tuples(st.just("__setitem__"), NUMBERS, NUMBERS),
    st.tuples(st.just("setdefault"), NUMBERS, NUMBERS),
    st.tuples(st.just("pop"), NUMBERS, st.none()),
    st.tuples(st.just("update"), st.dictionaries(NUMBERS, NUMBERS, max_size=3)),
    st.just(("clear",)),
    st.just(("discard",)),
)
RANGES = st.builds(KeyRange, st.none() | NUMBERS, st.none() | NUMBERS, st.booleans())


@given(st.dictionaries(NUMBERS, NUMBERS), st.lists(st.tuples(CHANGES, RANGES)), st.booleans())
def test_ranges_hold_what_a_dict_would(first, steps, ranked):
    """With a rank, keys are in the opposite order."""
    rank = (lambda number: -number) if ranked else None
    entries, model = OrderedEntries(first, rank), dict(first)
    for (method, *arguments), part in steps:
        for each in (entries, model):
            if method == "discard":
                if each:
                    del each[min(each)]
            else:
                getattr(each, method)(*arguments)
        part = KeyRange(part.low, part.high, part.descending, rank)
        assert entries == model
        assert [*entries.between(part)] == part.cut(model.items())


@given(RANGES, RANGES)
def test_a_range_covers_another_if_it_holds_all_that_the_other_holds(one, other):
    everything = range(-1, 11)
    if one.covers(other):
        assert all(one.holds(n) for n in everything if other.holds(n))
