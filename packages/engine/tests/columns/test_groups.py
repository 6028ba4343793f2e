"""Groups against a plain loop over rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay_engine.columns.groups import Groups, group
from forebay_engine.columns.keys import canonical, check_text, distinct, python_keys
from forebay_state_api.errors import ConfigurationError

pytestmark = pytest.mark.long

MOST = (1 << 63) - 1


def groups_of(*columns: pa.Array, names: str = "k") -> Groups:
    made = [canonical(column, name) for column, name in zip(columns, "klmn", strict=False)]
    return group(made, list("klmn"[: len(made)]), distinct(made))


def by_key(keys: list[Any]) -> dict[Any, list[int]]:
    found: dict[Any, list[int]] = {}
    for position, key in enumerate(keys):
        found.setdefault(key, []).append(position)
    return found


KEYS = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 2)), min_size=1, max_size=60)
FLOATS = st.floats(width=64)


def same(one: Any, other: Any) -> bool:
    return one == other or (isinstance(one, float) and math.isnan(one) and math.isnan(other))


@st.composite
def case(draw: Callable[..., Any], values: st.SearchStrategy[Any]) -> Any:
    keys = draw(KEYS)
    size = len(keys)
    some = draw(st.lists(st.none() | values, min_size=size, max_size=size))
    mask = draw(st.lists(st.none() | st.booleans(), min_size=size, max_size=size))
    made = groups_of(pa.array([k for k, _ in keys]), pa.array([n for _, n in keys], pa.int32()))
    start = draw(st.lists(st.none() | values, min_size=len(made), max_size=len(made)))
    return made, by_key(keys), some, mask, start


@settings(max_examples=40, deadline=None)
@given(case(st.integers(-(1 << 40), 1 << 40)))
def test_keys_rows_and_counts(found: Any) -> None:
    groups, rows, values, mask, _ = found
    assert groups.python_keys() == list(rows)
    assert groups.first_rows().to_pylist() == [at[0] for at in rows.values()]
    assert groups.last_rows().to_pylist() == sorted(at[-1] for at in rows.values())
    array, where = pa.array(values, pa.int64()), pa.array(mask, pa.bool_())
    chosen = [[at for at in some if mask[at]] for some in rows.values()]
    assert groups.first_rows(where).to_pylist() == sorted(at[0] for at in chosen if at)
    assert groups.last_rows(where).to_pylist() == sorted(at[-1] for at in chosen if at)
    assert groups.first(array).to_pylist() == [values[at[0]] for at in rows.values()]
    assert groups.last(array).to_pylist() == [values[at[-1]] for at in rows.values()]
    assert groups.first(array, where).to_pylist() == [
        values[at[0]] if at else None for at in chosen
    ]
    assert groups.last(array, where).to_pylist() == [
        values[at[-1]] if at else None for at in chosen
    ]
    assert groups.count().to_pylist() == [*map(len, rows.values())]
    assert groups.count(where=where).to_pylist() == [*map(len, chosen)]
    assert groups.count(array, where).to_pylist() == [
        sum(values[at] is not None for at in some) for some in chosen
    ]
    assert groups.any(where).to_pylist() == [any(mask[at] for at in some) for some in rows.values()]
    assert groups.all(where).to_pylist() == [all(mask[at] for at in some) for some in rows.values()]
    assert groups.invert(where).to_pylist() == [not one for one in mask]
    assert groups.spread(groups.index.unique()).to_pylist() == groups.index.to_pylist()


@settings(max_examples=40, deadline=None)
@given(case(st.integers(-(1 << 61), 1 << 61) | st.sampled_from([MOST, -MOST - 1])))
def test_sums_of_whole_numbers_are_exact_or_refused(found: Any) -> None:
    groups, rows, values, mask, start = found
    array, where = pa.array(values, pa.int64()), pa.array(mask, pa.bool_())
    before = pa.array(start, pa.int64())
    totals, running = [], [0] * len(values)
    for total, some in zip([one or 0 for one in start], rows.values(), strict=True):
        for at in some:
            total += (values[at] or 0) if mask[at] else 0
            running[at] = total
        totals.append(total)
    for wanted, method in ((totals, groups.sum), (running, groups.cumsum)):
        if all(-MOST - 1 <= one <= MOST for one in wanted):
            assert method(array, before, where).to_pylist() == wanted
        else:
            with pytest.raises(OverflowError, match=r"beyond 64 bits for key \('"):
                method(array, before, where)


@settings(max_examples=40, deadline=None)
@given(case(FLOATS))
def test_float_sums_are_those_of_a_loop(found: Any) -> None:
    groups, rows, values, _, start = found
    array, before = pa.array(values, pa.float64()), pa.array(start, pa.float64())
    totals, running = [], [0.0] * len(values)
    for total, some in zip([one or 0.0 for one in start], rows.values(), strict=True):
        for at in some:
            total += values[at] or 0.0
            running[at] = total
        totals.append(total)
    assert all(map(same, groups.sum(array, before).to_pylist(), totals))
    assert all(map(same, groups.cumsum(array, before).to_pylist(), running))


@settings(max_examples=40, deadline=None)
@given(case(st.integers(0, 9)))
def test_running_counts_and_fills(found: Any) -> None:
    groups, rows, values, mask, start = found
    where, before = pa.array(mask, pa.bool_()), pa.array(start, pa.int64())
    counts, filled = [0] * len(values), [None] * len(values)
    for first, some in zip(start, rows.values(), strict=True):
        count, last = first or 0, first
        for at in some:
            count += bool(mask[at])
            last = last if values[at] is None else values[at]
            counts[at], filled[at] = count, last
    assert groups.cumcount(before, where).to_pylist() == counts
    array = pa.array(values, pa.int64())
    assert groups.ffill(array, before).to_pylist() == filled
    text = [None if one is None else str(one) for one in values]
    shown = [None if one is None else str(one) for one in filled]
    assert groups.ffill(pa.array(text, pa.string()), before.cast(pa.string())).to_pylist() == shown


@settings(max_examples=40, deadline=None)
@given(case(st.integers(-5, 5) | st.just(MOST)))
def test_extremes(found: Any) -> None:
    groups, rows, values, mask, _ = found
    where = pa.array(mask, pa.bool_())
    kept = [
        [values[a] for a in some if mask[a] and values[a] is not None] for some in rows.values()
    ]
    array = pa.array(values, pa.int64())
    assert groups.min(array, where).to_pylist() == [min(one, default=None) for one in kept]
    assert groups.max(array, where).to_pylist() == [max(one, default=None) for one in kept]
    text = pa.array([None if one is None else f"{one:+030}" for one in values], pa.string())
    assert groups.max(text, where).to_pylist() == [
        max((f"{value:+030}" for value in one), default=None) for one in kept
    ]


def test_many_rows_of_one_key_and_many_keys_sum_as_a_loop_does() -> None:
    generator = np.random.default_rng(7)
    keys = np.concatenate([np.zeros(500, int), generator.integers(0, 70_000, 100_000)])
    values = generator.normal(size=len(keys)) * 10.0 ** generator.integers(-9, 9, len(keys))
    groups = groups_of(pa.array(keys))
    totals: dict[int, float] = {}
    running = []
    for key, value in zip(keys.tolist(), values.tolist(), strict=True):
        totals[key] = totals.get(key, 0.0) + value
        running.append(totals[key])
    assert groups.cumsum(values).to_pylist() == running
    assert groups.sum(values).to_pylist() == list(totals.values())


def test_nan_is_the_greatest_float() -> None:
    groups = groups_of(pa.array(["a", "a", "b", "b"]))
    values = [math.nan, 1.0, math.nan, math.nan]
    assert groups.min(values).to_pylist()[0] == 1.0
    assert all(map(math.isnan, groups.max(values).to_pylist()))


def test_keys_have_one_form() -> None:
    assert len(groups_of(pa.array([0.0, -0.0]))) == 1
    assert len(groups_of(pa.array([1.5, 1.5], pa.float32()))) == 1
    decimals = canonical(pa.array([Decimal("1.50")], pa.decimal128(9, 2)), "k")
    (key,) = python_keys([decimals])
    assert str(key) == "1.5"
    small, large = (canonical(pa.array([3], kind), "k") for kind in (pa.int8(), pa.uint32()))
    assert small.equals(large)
    zoned = pa.array([0], pa.timestamp("ms", "Asia/Tokyo"))
    assert python_keys([canonical(zoned, "k")])[0].isoformat() == "1970-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (pa.array(["a", None]), "is null in row 1"),
        (pa.array([1.0, math.nan]), "is NaN in row 1"),
        (pa.array([0, 3_000_000], pa.int32()).cast(pa.date32()), "outside the years"),
        (pa.array([0, -(1 << 60)], pa.int64()).cast(pa.timestamp("us")), "outside the years"),
    ],
)
def test_what_cannot_be_a_key_is_refused(column: pa.Array, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=f"key column 'k' .*{reason}"):
        groups_of(column)


def test_text_in_views_is_taken():
    # Polars has its text so.
    groups = groups_of(pa.array(["a", "b", "a"], pa.string_view()))
    values = pa.array(["x", None, None], pa.string_view())
    assert groups.ffill(values).to_pylist() == ["x", None, "x"]
    assert groups.last(values).to_pylist() == [None, None]
    assert groups.python_keys() == ["a", "b"]


def test_text_that_is_not_utf8_is_refused() -> None:
    wrong = pa.array([b"\xff"]).view(pa.string())
    with pytest.raises(ConfigurationError, match="'k' has text that is not UTF-8"):
        check_text(wrong, "k")


@pytest.mark.parametrize(
    ("act", "kind", "reason"),
    [
        (lambda g: g.sum([1, 2]), ValueError, "sum: 2 values were given for 3 rows"),
        (lambda g: g.sum([1, 2, 3], start=[1]), ValueError, "start of sum: 1 .* 2 keys"),
        (lambda g: g.sum(["a", "b", "c"]), TypeError, "sum takes whole numbers or floats"),
        (lambda g: g.sum(5), TypeError, "sum takes an array of Arrow"),
        (lambda g: g.sum("abc"), TypeError, "sum takes an array of Arrow"),
        (lambda g: g.count(where=[True]), ValueError, "the mask of count has 1 elements"),
        (lambda g: g.count(where=[1, 2]), TypeError, "mask of true and false, not values of int64"),
        (lambda g: g.spread([1]), ValueError, "spread: 1 values were given for 2 keys"),
        (lambda g: g.any([True]), ValueError, "any: a mask of 1 was given for 3 rows"),
        (lambda g: g.sum(pa.array([1, 2, 1 << 63], pa.uint64())), OverflowError, "beyond 64 bits"),
    ],
)
def test_what_does_not_fit_is_refused(
    act: Callable[[Groups], Any], kind: type[Exception], reason: str
) -> None:
    with pytest.raises(kind, match=reason):
        act(groups_of(pa.array(["a", "b", "a"])))


def test_a_mask_of_keys_leaves_out_all_rows_of_a_key() -> None:
    groups = groups_of(pa.array(["a", "b", "a"]))
    assert groups.sum([1, 2, 3], where=[False, True]).to_pylist() == [0, 2]
    assert groups.first_rows(where=[True, False]).to_pylist() == [0]
