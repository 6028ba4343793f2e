"""Values for the tests of codecs: strategies for the plain kinds, and their equality."""

from __future__ import annotations

from datetime import UTC, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

ZONES = [timezone(timedelta(hours=5, minutes=30)), ZoneInfo("Europe/Paris")]
"""Datetimes of these zones come back in UTC."""

surrogates_too = st.text(st.characters(codec=None, exclude_categories=()))
decimals = st.decimals().filter(lambda d: not d.is_snan())
datetimes = st.datetimes(timezones=st.sampled_from([None, UTC]))

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.floats(),
    st.text(),
    surrogates_too,
    st.binary(),
    st.dates(),
    datetimes,
    st.times(),
    st.timedeltas(),
    decimals,
    st.uuids(),
)

keys = st.recursive(scalars, lambda part: st.lists(part, max_size=3).map(tuple), max_leaves=5)

hashable = keys.filter(lambda key: not _has_nan(key))


def _has_nan(key: Any) -> bool:
    if type(key) is tuple:
        return any(map(_has_nan, key))
    return isinstance(key, float | Decimal) and key != key


plain = st.recursive(
    scalars,
    lambda part: st.one_of(
        st.lists(part, max_size=4),
        st.lists(part, max_size=4).map(tuple),
        st.dictionaries(hashable, part, max_size=4),
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Equal in value, in class and in all parts; -0.0 is not 0.0, zones and folds count."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    return repr(one) == repr(other)
