"""Filters on key columns narrow the key groups that are read."""

from __future__ import annotations

from datetime import date

import pytest

pytest.importorskip("pyspark", minversion="4.1", reason="push-down of filters needs pyspark 4.1")

from pyspark.sql.datasource import EqualNullSafe, EqualTo, GreaterThan, In, Not

from forebay_spark_runtime.data_source.key_filters import MOST_KEYS, keys_in
from forebay_state_api.codecs import codec_for

KEY, FIRST, SECOND = ("key",), ("key_1",), ("key_2",)


def keys(key_type, *filters):
    return keys_in(filters, codec_for(key_type, what="the key").description)


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ([EqualTo(KEY, "a")], ["a"]),
        ([EqualNullSafe(KEY, "a")], ["a"]),
        ([In(KEY, ("b", "a"))], ["a", "b"]),
        ([In(KEY, ("b", "a")), EqualTo(KEY, "b"), GreaterThan(KEY, "0")], ["b"]),
        ([EqualTo(KEY, "a"), EqualTo(KEY, "b")], []),
        ([GreaterThan(KEY, "a")], None),
        ([Not(EqualTo(KEY, "a"))], None),
        ([EqualTo(("value", "key"), "a")], None),
        ([EqualTo(("value",), "a")], None),
        ([In(KEY, tuple(map(str, range(MOST_KEYS + 1))))], None),
        ([], None),
    ],
)
def test_one_key_column(filters, wanted):
    assert keys(str, *filters) == wanted


def test_several_key_columns():
    day = date(2024, 5, 1)
    both = [In(FIRST, ("a", "b")), EqualTo(SECOND, day)]
    assert sorted(keys(tuple[str, date], *both)) == [("a", day), ("b", day)]
    assert keys(tuple[str, date], both[0]) is None


def test_types_that_spark_compares_in_another_way_narrow_nothing():
    assert keys(float, EqualTo(KEY, 0.0)) is None
