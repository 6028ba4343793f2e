"""Key groups: the same as Spark's, and ranges that divide them among subtasks."""

# Times without a zone are among the kinds that state holds.
# ruff: noqa: DTZ001

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.keys import (
    KeyGroupRange,
    canonical_key,
    default_max_parallelism,
    key_group_of,
    key_group_range_of,
    subtask_of,
)

# Key, and its group for max parallelism 128 and 100, as Spark 3.5.9 and 4.3.0 computed them: both
# gave ``pmod(<the SQL expression above the row>, max parallelism)``.
GOLDEN = [
    # xxhash64(1L, 0L)
    (0, 89, 33),
    # xxhash64(1L, 1L)
    (1, 70, 2),
    # xxhash64(1L, -1L)
    (-1, 102, 78),
    # xxhash64(1L, 9223372036854775807L)
    (2**63 - 1, 13, 97),
    # xxhash64(1L, cast('-9223372036854775808' as bigint))
    (-(2**63), 51, 11),
    # xxhash64(1L, true)
    (True, 84, 16),
    # xxhash64(1L, false)
    (False, 115, 43),
    # xxhash64(1L, 0.0D)
    (0.0, 89, 33),
    # xxhash64(1L, -0.0D + 0.0D)
    (-0.0, 89, 33),
    # xxhash64(1L, 1.5D)
    (1.5, 71, 19),
    # xxhash64(1L, double('-Infinity'))
    (float("-inf"), 86, 54),
    # xxhash64(1L, '')
    ("", 98, 26),
    # xxhash64(1L, 'a')
    ("a", 70, 10),
    # xxhash64(1L, 'naïve ☃')
    ("naïve ☃", 87, 3),
    # xxhash64(1L, repeat('x', 70))
    ("x" * 70, 66, 82),
    # xxhash64(1L, X'')
    (b"", 98, 26),
    # xxhash64(1L, X'FF00')
    (b"\xff\x00", 125, 97),
    # xxhash64(1L, '0')
    (Decimal("0.00"), 108, 76),
    # xxhash64(1L, trim(TRAILING '.' FROM trim(TRAILING '0' FROM
    #     replace(format_number(-0.10BD, 2), ',', ''))))
    (Decimal("-0.10"), 44, 92),
    # xxhash64(1L, replace(format_number(1234567BD, 0), ',', ''))
    (Decimal(1234567), 100, 72),
    # xxhash64(1L, trim(TRAILING '.' FROM trim(TRAILING '0' FROM
    #     replace(format_number(cast('1E-18' as decimal(38, 18)), 18), ',', ''))))
    (Decimal("1E-18"), 27, 99),
    # xxhash64(1L, cast(unix_date(DATE'1969-12-31') as bigint) * 86400000000)
    (date(1969, 12, 31), 20, 8),
    # xxhash64(1L, cast(unix_date(DATE'2024-02-29') as bigint) * 86400000000)
    (date(2024, 2, 29), 74, 10),
    # xxhash64(1L, unix_micros(TIMESTAMP'2024-02-29 12:30:00.000001Z'))
    (datetime(2024, 2, 29, 12, 30, 0, 1, tzinfo=UTC), 21, 37),
    # xxhash64(1L, -25567L * 86400000000 + 3723000004L)
    (datetime(1900, 1, 1, 1, 2, 3, 4), 44, 16),
    # xxhash64(2L, 1L, 'a')
    ((1, "a"), 110, 26),
    # xxhash64(2L, 'a', 1L)
    (("a", 1), 98, 14),
    # xxhash64(3L, 1L, 2.5D, true)
    ((1, 2.5, True), 19, 15),
]


@pytest.mark.parametrize(("key", "of_128", "of_100"), GOLDEN, ids=repr)
def test_groups_are_those_of_spark(key, of_128, of_100):
    assert key_group_of(key, 128) == of_128
    assert key_group_of(key, 100) == of_100


@given(st.integers(-(2**63), 2**63 - 1) | st.text() | st.binary() | st.dates() | st.booleans())
def test_a_bare_key_is_a_key_of_one_column(key):
    assert key_group_of(key, 128) == key_group_of((key,), 128)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3), st.integers(0, 5))
def test_the_scale_of_a_decimal_does_not_move_it(key, more):
    with_zeros = Decimal(f"{key:f}" + "0" * more)
    assert with_zeros == key
    assert key_group_of(with_zeros, 128) == key_group_of(key, 128)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Decimal("-0.00"), Decimal(0)),
        (Decimal("1E+3"), Decimal(1000)),
        (datetime(2024, 1, 1, 12, tzinfo=UTC), datetime(2024, 1, 1, 12)),
        (
            datetime(2024, 1, 1, 12, tzinfo=UTC),
            datetime(2024, 1, 1, 14, tzinfo=timezone(timedelta(hours=2))),
        ),
        (date(1969, 12, 31), datetime(1969, 12, 31)),
    ],
    ids=repr,
)
def test_keys_of_one_group_by_definition(one, other):
    assert key_group_of(one, 32768) == key_group_of(other, 32768)


class Name(NamedTuple):
    first: str
    last: str


def test_a_named_tuple_is_several_columns():
    assert key_group_of(Name("a", "b"), 128) == key_group_of(("a", "b"), 128)


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (None, ValueError, "null"),
        (("a", None), ValueError, "null"),
        (float("nan"), ValueError, "NaN"),
        ((1, float("nan")), ValueError, "NaN"),
        (2**63, ValueError, "64 bits"),
        (-(2**63) - 1, ValueError, "64 bits"),
        (Decimal("Infinity"), ValueError, "finite"),
        ((), ValueError, "at least one column"),
        ([1], TypeError, "got list"),
        ({"a": 1}, TypeError, "got dict"),
        ((1, ("a", "b")), TypeError, "got tuple"),
        (UUID(int=1), TypeError, "got UUID"),
    ],
    ids=repr,
)
def test_what_cannot_be_a_key(key, error, message):
    with pytest.raises(error, match=message):
        key_group_of(key, 128)


maxima = st.integers(1, 600)


@given(st.integers(1, 300), maxima)
def test_subtasks_own_all_groups_in_contiguous_even_ranges(parallelism, maximum):
    if parallelism > maximum:
        with pytest.raises(ConfigurationError, match=f"1..{maximum}"):
            key_group_range_of(0, parallelism, maximum)
        return
    ranges = [key_group_range_of(i, parallelism, maximum) for i in range(parallelism)]
    assert [group for owned in ranges for group in owned] == list(range(maximum))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1
    for i, owned in enumerate(ranges):
        assert {subtask_of(group, parallelism, maximum) for group in owned} == {i}


@pytest.mark.parametrize(
    ("maximum", "parallelism", "expected"),
    [
        (128, 3, ["0..42", "43..85", "86..127"]),
        (10, 3, ["0..3", "4..6", "7..9"]),
        (10, 4, ["0..2", "3..4", "5..7", "8..9"]),
    ],
)
def test_ranges_are_those_of_flink(maximum, parallelism, expected):
    ranges = [key_group_range_of(i, parallelism, maximum) for i in range(parallelism)]
    assert list(map(str, ranges)) == expected


@pytest.mark.parametrize("subtask", [-1, 3])
def test_a_subtask_that_does_not_exist(subtask):
    with pytest.raises(ValueError, match=f"subtask {subtask} does not exist"):
        key_group_range_of(subtask, 3, 128)


@pytest.mark.parametrize("maximum", [0, 32_769])
def test_more_key_groups_than_there_can_be(maximum):
    with pytest.raises(ConfigurationError, match=f"within 1..32768, got {maximum}"):
        key_group_range_of(0, 1, maximum)
    assert key_group_range_of(0, 1, 32_768) == KeyGroupRange(0, 32_767)


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [(1, 128), (85, 128), (86, 256), (128, 256), (200, 512), (1000, 2048), (21845, 32768)],
)
def test_default_max_parallelism(parallelism, expected):
    assert default_max_parallelism(parallelism) == expected


@given(st.integers(1, 100_000))
def test_default_max_parallelism_leaves_half_as_much_to_grow(parallelism):
    maximum = default_max_parallelism(parallelism)
    assert 128 <= maximum <= 32768
    assert maximum.bit_count() == 1
    assert maximum == 32768 or maximum >= 1.5 * parallelism


def test_default_max_parallelism_of_nothing():
    with pytest.raises(ConfigurationError, match="at least 1"):
        default_max_parallelism(0)


def test_a_range_is_inclusive():
    groups = KeyGroupRange(3, 5)
    assert list(groups) == [3, 4, 5]
    assert len(groups) == 3
    assert 3 in groups
    assert 5 in groups
    assert 6 not in groups
    assert "4" not in groups


@pytest.mark.parametrize(("start", "end"), [(3, 2), (-1, 2)])
def test_a_range_is_never_empty(start, end):
    with pytest.raises(ValueError, match="not a range"):
        KeyGroupRange(start, end)


@given(*[st.integers(0, 20)] * 4)
def test_intersection(a, b, c, d):
    one, other = KeyGroupRange(min(a, b), max(a, b)), KeyGroupRange(min(c, d), max(c, d))
    common = one.intersection(other)
    assert common == other.intersection(one)
    assert set(common or ()) == set(one) & set(other)


class TestCanonicalKey:
    def test_instants_of_a_repeated_hour_are_two_keys(self):
        zone = ZoneInfo("America/New_York")
        first = datetime(2024, 11, 3, 1, 30, tzinfo=zone)
        second = first.replace(fold=1)
        assert first == second
        assert canonical_key(first) != canonical_key(second)
        assert canonical_key(("a", first)) != canonical_key(("a", second))

    def test_an_instant_is_one_key_in_every_zone(self):
        here = datetime(2024, 11, 3, 1, 30, fold=1, tzinfo=ZoneInfo("America/New_York"))
        there = here.astimezone(UTC)
        assert canonical_key(here) == canonical_key(there) == there
        assert key_group_of(canonical_key(here), 128) == key_group_of(here, 128)

    @pytest.mark.parametrize(
        ("key", "canonical"),
        [
            (-0.0, 0.0),
            (Decimal("1.50"), Decimal("1.5")),
            (Decimal("1e1"), Decimal(10)),
            (Decimal("-0.00"), Decimal(0)),
            (("a", Decimal("1.00")), ("a", Decimal(1))),
        ],
    )
    def test_equal_keys_have_one_form(self, key, canonical):
        assert repr(canonical_key(key)) == repr(canonical)
        assert key_group_of(canonical, 128) == key_group_of(key, 128)

    @pytest.mark.parametrize("key", [1, True, 1.5, "a", datetime(2024, 11, 3), (1, "b")])
    def test_other_keys_stay_as_they_are(self, key):
        assert repr(canonical_key(key)) == repr(key)
