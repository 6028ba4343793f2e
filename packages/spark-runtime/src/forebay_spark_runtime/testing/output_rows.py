"""Checks the rows that a function emits against the declared schema, as on Spark."""

from __future__ import annotations

from typing import Any

from pyspark.sql.types import StructType

from forebay_engine.columns.outputs import Output
from forebay_engine.execution.late_rows import PROCESS
from forebay_spark_runtime.arrow.described_rows import DescribedRowWriter
from forebay_spark_runtime.arrow.describing_columns import with_describing_columns
from forebay_spark_runtime.arrow.row_checks import RowTests
from forebay_spark_runtime.arrow.rows_in import RowReader
from forebay_spark_runtime.arrow.rows_out import RowWriter
from forebay_spark_runtime.arrow.spark_objects import declared_types_of
from forebay_spark_runtime.arrow.spark_types import arrow_schema
from forebay_spark_runtime.keyed_operator.plan import parsed_schema
from forebay_state_api.codecs.spark_types import json_of_ddl


class OutputRows:
    """Converts rows of one schema to the form in which the next operator would get them."""

    def __init__(
        self,
        schema: Any,
        *,
        function: str,
        uid: str,
        error_column: str | None = None,
        late: str = PROCESS,
    ) -> None:
        """Parse ``schema``, a DDL string or a ``StructType``.

        ``function`` and ``uid`` name the function and its operator in errors. ``error_column`` is
        the name of the column for errors; ``None`` if there is none. ``late`` is the argument of
        `keyed`.
        """
        declared = parsed_schema(_struct_of, schema, uid)
        self.declared = declared.spark
        """The declared columns."""
        arrow = declared.arrow
        writer = RowWriter(
            arrow,
            function=function,
            time_zone="UTC",
            types=declared.types,
            where=f"operator {uid!r}",
        )
        self._columns = arrow, function, declared.types
        self.check = RowTests(writer, arrow).check
        self._writer: RowWriter | DescribedRowWriter = writer
        columns, classes = with_describing_columns(
            declared.spark, error_column, late, f"operator {uid!r}"
        )
        if classes:
            arrow = arrow_schema(columns)
            self._writer = DescribedRowWriter(writer, arrow, classes)
        shown = [*declared_types_of(declared.spark), *[None] * len(classes)][: len(arrow)]
        self._reader = RowReader(arrow.names, arrow.types, shown)

    def of_columns(self) -> Output:
        """Return what makes batches of the schema of what a batch function returns."""
        schema, function, types = self._columns
        return Output(schema, function, types=types)

    def checked(self, rows: list[Any]) -> list[Any]:
        """Return the rows with the schema's names and types.

        Raises `OutputSchemaError` if one does not fit.
        """
        return list(self._reader.rows(self._writer.batch(rows).columns))


def _struct_of(ddl: Any) -> StructType:
    """Make a ``StructType`` of DDL, without Java."""
    json = json_of_ddl(ddl)
    if not isinstance(json, dict) or json["type"] != "struct":
        raise ValueError("it names no column")
    return StructType.fromJson(json)
