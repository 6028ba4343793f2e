"""The hidden column for figures, for output columns of all types."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from forebay_spark_runtime.arrow.figures_column import (
    COLUMN,
    KEYS,
    MAXIMA,
    TYPE,
    FiguresColumn,
    with_figures_column,
)
from forebay_spark_runtime.arrow.spark_types import arrow_schema
from forebay_state_api import ConfigurationError

FIGURES = arrow_schema(StructType([StructField(COLUMN, TYPE)])).field(0)
TYPES = [
    pa.bool_(),
    pa.int8(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
    pa.duration("us"),
    pa.decimal128(20, 3),
    pa.list_(pa.int32()),
    pa.map_(pa.string(), pa.int32()),
    pa.struct([pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.string())]),
]


def test_figures_are_in_the_order_of_their_keys():
    column = FiguresColumn(pa.schema([pa.field("n", pa.int64()), FIGURES]))
    row = column.row(3, {"rows_in": 7, "in_flight_max": 2})
    (sent,) = row.column(COLUMN).to_pylist()
    assert (sent["subtask"], sent["names"]) == (3, ",".join(KEYS))
    found = dict(zip(KEYS, sent["sums"] + sent["maxima"], strict=True))
    assert (found["rows_in"], found["in_flight_max"], found["keys_new"]) == (7, 2, None)
    assert "in_flight_max" in MAXIMA
    assert row.column("n").to_pylist() == [None]


def test_rows_of_the_user_have_no_figures():
    column = FiguresColumn(pa.schema([pa.field("n", pa.int64()), FIGURES]))
    batch = column.without_figures(pa.record_batch([pa.array([1, 2])], names=["n"]))
    assert batch.to_pylist() == [{"n": 1, COLUMN: None}, {"n": 2, COLUMN: None}]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_column_that_cannot_be_null_is_empty(kind):
    schema = pa.schema([pa.field("c", kind, nullable=False), FIGURES])
    row = FiguresColumn(schema).row(0, {})
    row.validate(full=True)
    assert row.column("c").null_count == 0
    assert FiguresColumn.fits(schema)


def test_an_output_whose_rows_cannot_be_empty_sends_no_figures():
    kind = pa.dense_union([pa.field("a", pa.int8()), pa.field("b", pa.string())])
    assert not FiguresColumn.fits(pa.schema([pa.field("c", kind, nullable=False), FIGURES]))


def test_the_name_is_reserved():
    columns = StructType([StructField(COLUMN.upper(), LongType())])
    with pytest.raises(ConfigurationError, match="reserved name"):
        with_figures_column(columns, "operator 'a'")
