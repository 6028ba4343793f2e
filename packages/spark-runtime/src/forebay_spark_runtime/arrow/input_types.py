"""Check which Spark types reach Python workers, and which of them Python can read and write.

The driver makes them before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeAlias

from pyspark.errors import PySparkException
from pyspark.sql import types as spark

from forebay_spark_runtime.arrow.spark_objects import parts_of
from forebay_state_api.errors import ConfigurationError

Flaw: TypeAlias = "tuple[str, str] | None"
"""The reason why a type cannot be used, and the remedy; ``None`` if it can."""

_IN_PIPELINE: Final = "ATTEMPT_ANALYSIS_IN_PIPELINE_QUERY_FUNCTION"
"""Spark's error condition when the function of a pipeline table asks for columns."""

_UNKNOWN_TO_PYTHON: Final = tuple(
    getattr(spark, name)
    for name in ("YearMonthIntervalType", "CalendarIntervalType")
    if hasattr(spark, name)
)
"""Types that Spark's ``mapInArrow`` refuses; older versions of pyspark lack some of them."""


def refuse_in_pipeline(error: Exception, operator: str) -> None:
    """Raise `ConfigurationError` if ``error`` says that a query function asked for columns.

    ``operator`` is named in the message.
    """
    if _IN_PIPELINE in str(error):
        raise ConfigurationError(
            f"{operator}: a function under @dp.table must not ask for columns, as keyed() and "
            "ordered_wait() do: make the DataFrame outside, at the module's level, and return "
            "it from the function; docs/how-to/pipelines.md shows it"
        ) from None


def schema_of(df: Any, operator: str) -> Any:
    """Return the schema of ``df``.

    Raises `ConfigurationError` if pyspark does not know a type in it, and in the query functions
    of declarative pipelines, which must not ask for a schema. ``operator`` is named in the message.
    """
    try:
        return df.schema
    except (PySparkException, KeyError) as error:
        refuse_in_pipeline(error, operator)
        if not isinstance(error, ValueError | KeyError):
            raise
        # pyspark looks up the Python class of a user-defined type that has none.
        of_java = "a user-defined type without a class in Python"
        reason = of_java if error.args == ("pyClass",) else str(error).splitlines()[0]
        raise ConfigurationError(
            f"{operator}: a column of the input is of a type that this pyspark does not know: "
            f"{reason}; cast it to string, or drop it"
        ) from error


def check_carried(fields: Iterable[Any], operator: str) -> None:
    """Raise `ConfigurationError` for the first field that cannot pass through Python unchanged.

    ``operator`` is named in the message.
    """
    _check(fields, operator, _cannot_travel, "cannot go through Python workers")


def check_readable(fields: Iterable[Any], operator: str) -> None:
    """Raise `ConfigurationError` for the first input field that Python cannot read.

    ``operator`` is named in the message.
    """
    _check(fields, operator, _cannot_be_read, "cannot be read")


def check_writable(fields: Iterable[Any], operator: str) -> None:
    """Raise `ConfigurationError` for the first output field that Python cannot write.

    ``operator`` is named in the message.
    """
    _check(fields, operator, _cannot_be_written, "of the output cannot be written")


def _check(fields: Iterable[Any], operator: str, flaw_of: Callable[[Any], Flaw], what: str) -> None:
    for field in fields:
        flaw = flaw_of(field.dataType)
        if flaw is not None:
            why, way_out = flaw
            raise ConfigurationError(
                f"{operator}: column {field.name!r} of type {field.dataType.simpleString()} {what}:"
                f" {why}; {way_out}, or drop it"
            )


def _cannot_travel(kind: Any) -> Flaw:
    if isinstance(kind, spark.UserDefinedType):
        return _cannot_travel(kind.sqlType())
    if isinstance(kind, _UNKNOWN_TO_PYTHON):
        return f"Python has no type for {kind.simpleString()}", "cast it to string"
    if _is_literal_of_nothing(kind):
        return "an empty literal has no type", "cast it to the type that is meant"
    flaws = map(_cannot_travel, parts_of(kind))
    return next((flaw for flaw in flaws if flaw is not None), None)


def _is_literal_of_nothing(kind: Any) -> bool:
    """Return whether this is the type of ``array()`` or ``map()``."""
    if isinstance(kind, spark.ArrayType):
        return isinstance(kind.elementType, spark.NullType) and not kind.containsNull
    return isinstance(kind, spark.MapType) and isinstance(kind.keyType, spark.NullType)


def _cannot_be_written(kind: Any) -> Flaw:
    if isinstance(kind, spark.UserDefinedType):
        return _cannot_be_written(kind.sqlType())
    if isinstance(kind, spark.StructType) and (flaw := _repeats_a_field(kind)) is not None:
        return flaw
    if (flaw := _cannot_travel(kind)) is not None:
        return flaw
    flaws = map(_cannot_be_written, parts_of(kind))
    return next((flaw for flaw in flaws if flaw is not None), None)


def _repeats_a_field(kind: Any) -> Flaw:
    if len(set(kind.names)) == len(kind):
        return None
    return f"a struct has two fields of one name: {', '.join(kind.names)}", "rename them"


def _cannot_be_read(kind: Any) -> Flaw:
    if isinstance(kind, spark.UserDefinedType):
        return _cannot_be_read(kind.sqlType())
    if (flaw := _cannot_travel(kind)) is not None:
        return flaw
    if isinstance(kind, spark.MapType) and _holds_arrays(kind.keyType):
        return "keys of a dict cannot hold arrays", "take its map_entries()"
    if isinstance(kind, spark.StructType) and (flaw := _repeats_a_field(kind)) is not None:
        return flaw
    flaws = map(_cannot_be_read, parts_of(kind))
    return next((flaw for flaw in flaws if flaw is not None), None)


def _holds_arrays(kind: Any) -> bool:
    if isinstance(kind, spark.UserDefinedType):
        return _holds_arrays(kind.sqlType())
    return isinstance(kind, spark.ArrayType) or any(map(_holds_arrays, parts_of(kind)))
