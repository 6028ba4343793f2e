"""The hidden column in which each subtask sends its figures, in one row after the user's rows.

The column is null in the user's rows. Its struct has the subtask's number, the names of the figures
and the figures in their order, those that add up apart from those of which the largest counts; a
figure that is not known is null. The names travel in the row because Spark prints the plan in
errors, and it would hold them.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    DoubleType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.metrics import KEYED, MetricLevel

_log = logging.getLogger(__name__)

COLUMN: Final = "__forebay_figures"

_INFO: Final = [metric for metric in KEYED if metric.level is MetricLevel.INFO]

SUMS: Final = [key for one in _INFO if one.add is operator.add for key in one.keys]
"""Keys whose numbers add up over the subtasks."""

MAXIMA: Final = [key for one in _INFO if one.add is max for key in one.keys]
"""Keys of which the largest number counts."""

KEYS: Final = [*SUMS, *MAXIMA]

NAMES: Final = ",".join(KEYS)

TYPE: Final = StructType(
    [
        StructField("subtask", IntegerType()),
        StructField("names", StringType()),
        StructField("sums", ArrayType(DoubleType())),
        StructField("maxima", ArrayType(DoubleType())),
    ]
)
"""The column's type."""


def with_figures_column(
    columns: StructType, who: str, mark: StructField | None = None
) -> StructType:
    """Return an output schema with the hidden column, and ``mark``, if it is given, before it.

    Their names are refused among ``columns``.
    """
    hidden = [*([] if mark is None else [mark]), StructField(COLUMN, TYPE)]
    for taken in {field.name for field in hidden} & {field.name.lower() for field in columns}:
        raise ConfigurationError(f"{who}: the output column {taken!r} has a reserved name")
    return StructType([*columns, *hidden])


class FiguresColumn:
    """Adds the hidden column to the batches of one subtask."""

    def __init__(self, schema: pa.Schema) -> None:
        """``schema`` ends with the hidden column."""
        self._schema = schema

    @classmethod
    def fits(cls, schema: pa.Schema) -> bool:
        """Return whether a row of figures can be made: every column can be null or empty."""
        try:
            cls(schema).row(0, {}).validate(full=True)
        except (pa.ArrowException, NotImplementedError, TypeError) as error:
            _log.info("no figures are sent in an output of %s: %s", schema, error)
            return False
        return True

    def without_figures(self, batch: Any) -> Any:
        """Return a batch of the user's rows with all hidden columns."""
        hidden = self._schema.types[batch.num_columns :]
        columns = [*batch.columns, *(pa.nulls(batch.num_rows, kind) for kind in hidden)]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def row(self, subtask: int, figures: Mapping[str, float], mark_us: int | None = None) -> Any:
        """Return the row of figures; the user's columns are null, or empty if they cannot be.

        ``mark_us`` is the time in the column before that of figures, if there is one.
        """
        numbers = (subtask, NAMES, [*map(figures.get, SUMS)], [*map(figures.get, MAXIMA)])
        sent = dict(zip(TYPE.names, numbers, strict=True))
        columns = [_nothing(field) for field in list(self._schema)[:-1]]
        if mark_us is not None:
            columns[-1] = pa.array([mark_us], pa.int64()).cast(self._schema.types[-2])
        return pa.RecordBatch.from_arrays(
            [*columns, pa.array([sent], self._schema.types[-1])], schema=self._schema
        )


def _nothing(field: pa.Field) -> pa.Array:
    """Return one null, or one empty value for a column that cannot be null."""
    return pa.nulls(1, field.type) if field.nullable else _empty(field.type)


def _empty(kind: pa.DataType) -> pa.Array:
    """Return one value whose bytes are zeros, which is valid for every type."""
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([_nothing(child) for child in kind], fields=list(kind))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        return pa.array([[]], kind)
    if pa.types.is_primitive(kind) or pa.types.is_decimal(kind):
        zeros = pa.py_buffer(bytes(max(kind.bit_width // 8, 1)))
        return pa.Array.from_buffers(kind, 1, [None, zeros])
    return pa.array([b""]).cast(kind)
