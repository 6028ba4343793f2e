"""Compiled tests of values: what passes can be written, as it would be without the test."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forebay_spark_runtime.arrow.row_checks import PassedRows, RowTests
from forebay_spark_runtime.arrow.rows_out import RowWriter

WALL = datetime(2026, 1, 1, 12)  # noqa: DTZ001 - wall-clock time
NESTED = pa.struct(
    [
        ("name", pa.string()),
        pa.field("counts", pa.list_(pa.field("element", pa.int16(), nullable=False))),
        ("days", pa.map_(pa.string(), pa.date32())),
    ]
)
USUAL: list[tuple[Any, list[Any]]] = [
    (pa.string(), ["", "a", "\ud83d"]),
    (pa.large_string(), ["a"]),
    (pa.bool_(), [True]),
    (pa.float64(), [1.5, float("nan"), float("-inf"), 3, 2**53 - 1, -(2**53) + 1]),
    (pa.float32(), [1.5, -3.3e38, float("nan")]),
    (pa.binary(), [b"a"]),
    (pa.large_binary(), [b"a"]),
    (pa.date32(), [date.min, date.max]),
    (pa.duration("us"), [timedelta(days=-100_000_000), timedelta(microseconds=1)]),
    (pa.int8(), [127, -127]),
    (pa.int32(), [2**31 - 1, -(2**31) + 1]),
    (pa.int64(), [2**63 - 1, -(2**63) + 1]),
    (pa.timestamp("us", tz="UTC"), [WALL, datetime(2, 1, 1, tzinfo=UTC)]),
    (pa.timestamp("us"), [WALL]),
    (pa.decimal128(5, 2), [Decimal("-999.99"), Decimal(999), Decimal("0.0"), Decimal("1E+2")]),
    (pa.list_(pa.string()), [[], ["a", None]]),
    (pa.list_(pa.list_(pa.float32())), [[[1.0], None, []]]),
    (pa.map_(pa.int64(), pa.list_(pa.int8())), [{}, {1: [2], 3: None}]),
    (NESTED, [("a", [1, -2], {"x": date(2026, 1, 1)}), (None, None, {"x": None})]),
]
"""Types, and values of each that pass the test."""
MISFITS: list[tuple[Any, list[Any]]] = [
    (pa.string(), [b"a", 1]),
    (pa.bool_(), [1]),
    (pa.float64(), [True, "1", Decimal(1)]),
    (pa.float32(), [3.5e38, -1e300]),
    (pa.date32(), [WALL]),
    (pa.duration("us"), [1, timedelta.max]),
    (pa.int8(), [128, -129, True, 1.0]),
    (pa.int64(), [2**63, -(2**63) - 1]),
    (pa.timestamp("us"), [datetime(2026, 1, 1, tzinfo=UTC), date(2026, 1, 1)]),
    (pa.decimal128(5, 2), [Decimal(1000), Decimal("0.001"), Decimal("NaN"), Decimal("Infinity")]),
    (pa.list_(pa.string()), ["a", ["a", 1], {"a": 1}]),
    (pa.list_(pa.list_(pa.float32())), [[[1e300]], [1.0]]),
    (pa.map_(pa.int64(), pa.list_(pa.int8())), [{None: [1]}, {"a": [1]}, {1: [128]}]),
    (NESTED, [("a", [None], {}), ("a", [1]), (1, [1], {}), ("a", [1], {"x": WALL})]),
]
"""Types, and values of each that do not fit."""


def pairs(of: list[tuple[Any, list[Any]]]) -> list[tuple[Any, Any]]:
    return [(kind, value) for kind, values in of for value in values]


def writer_and_test(kind: Any) -> tuple[RowWriter, Any]:
    """Return the writer and the test of rows of a text and a value of ``kind``."""
    schema = pa.schema([("text", pa.string()), ("value", kind)])
    writer = RowWriter(schema, function="f", time_zone="Europe/Berlin")
    return writer, RowTests(writer, schema).passes


@pytest.mark.parametrize(("kind", "value"), pairs(USUAL))
def test_usual_values_pass(kind: Any, value: Any) -> None:
    _, passes = writer_and_test(kind)
    assert passes(("a", value))
    assert passes((None, value))
    assert passes(("a", None))


@pytest.mark.parametrize(("kind", "value"), pairs(MISFITS))
def test_misfits_do_not_pass(kind: Any, value: Any) -> None:
    _, passes = writer_and_test(kind)
    assert not passes(("a", value))


def test_a_type_without_a_test_passes_nulls_only() -> None:
    _, passes = writer_and_test(pa.time64("us"))
    assert passes(("a", None))
    assert not passes(("a", timedelta(1)))


ANY = st.recursive(
    st.sampled_from([value for _, value in pairs(USUAL) + pairs(MISFITS)])
    | st.integers(-(2**65), 2**65)
    | st.floats()
    | st.decimals(places=None)
    | st.text(max_size=3)
    | st.datetimes(datetime(1, 1, 1), timezones=st.none() | st.just(UTC))  # noqa: DTZ001 - a bound
    | st.timedeltas(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner, inner)
        | st.dictionaries(st.integers(-3, 3), inner, max_size=2)
    ),
    max_leaves=6,
)


@pytest.mark.long
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    kind=st.sampled_from([kind for kind, _ in USUAL]), values=st.lists(ANY, min_size=1, max_size=8)
)
def test_what_passes_is_written_as_it_would_be_without_the_test(
    kind: Any, values: list[Any]
) -> None:
    writer, passes = writer_and_test(kind)
    rows = [row for value in values if passes(row := ("a", value))]
    expected = writer.batch(rows).columns
    tested = PassedRows([*chain.from_iterable(rows)], 2)
    for column, other in zip(writer.columns_of_passed(tested.columns()), expected, strict=True):
        assert repr(column.to_pylist()) == repr(other.to_pylist())
