"""`ordered_wait` and `unordered_wait`: append the answers of asynchronous calls to a DataFrame.

The result is an ordinary DataFrame, streaming if the input streams. All arguments are checked
here, on the driver, before anything runs.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, ClassVar, Final

import attrs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the customary name
from pyspark.sql.types import StructField, StructType

from forebay_engine.execution.arguments import COLUMN, checked_error_column
from forebay_spark_runtime.arrow.describing_columns import refuse_not_null
from forebay_spark_runtime.arrow.input_types import check_carried, check_readable, schema_of
from forebay_spark_runtime.arrow.spark_objects import declared_types_of
from forebay_spark_runtime.driver import query_listener, stored_operators
from forebay_spark_runtime.driver import session as sessions
from forebay_spark_runtime.driver.final_versions import final_versions
from forebay_spark_runtime.driver.shipping import shipped
from forebay_spark_runtime.driver.worker_python import use_python_of_driver
from forebay_spark_runtime.keyed_operator.plan import (
    HiddenColumns,
    OutputSchema,
    output_schema,
)
from forebay_spark_runtime.waiting.arrow_in import InputLayout
from forebay_spark_runtime.waiting.arrow_out import ERROR_DDL
from forebay_spark_runtime.waiting.carry_job import CarryJob
from forebay_spark_runtime.waiting.carry_plan import check_pending, columns_of, routed_to_subtasks
from forebay_spark_runtime.waiting.keeping import check_keeping, with_time
from forebay_spark_runtime.waiting.options import (
    WaitFunction,
    WaitOptions,
    takes_options,
)
from forebay_spark_runtime.waiting.reports import WaitMetrics, log_sink
from forebay_spark_runtime.waiting.spec import WaitSpec, checked, pickled
from forebay_spark_runtime.waiting.task import WaitJob
from forebay_state_api.errors import ConfigurationError

_PARTITION: Final = f"{HiddenColumns.PREFIX}partition"
_TIME: Final = f"{HiddenColumns.PREFIX}time"


@takes_options(WaitOptions)
def ordered_wait(
    df: DataFrame, fn: WaitFunction, output: str | StructType, options: WaitOptions
) -> DataFrame:
    """Call ``fn`` for each row of ``df``, many at a time, and append the answers in row order.

    Order is kept within each partition. The micro-batch ends when every row has its answer; a row
    that fails permanently fails the micro-batch, which Spark runs again. Nothing is stored.

    :param df: the input, bounded or streaming, of classic Spark or Spark Connect.
    :param fn: ``async def fn(row, client)``, or a plain function of the two, which runs on a
        thread; with ``batch`` ``fn(rows, client)``. ``client`` is ``None`` without ``resources``.
        An answer is a dict of the output columns, a tuple in their order, or the bare value of a
        single column. A list of answers makes one row for each.
    :param output: the columns to append, a DDL string or a ``StructType``.
    :param options: keyword arguments, documented at
        `forebay_spark_runtime.waiting.options.WaitOptions`.

    Returns a DataFrame, streaming if ``df`` streams. Raises `ConfigurationError` for arguments that
    cannot work, before anything runs.
    """
    return _wait(df, fn, output, options, ordered=True)


@takes_options(WaitOptions)
def unordered_wait(
    df: DataFrame, fn: WaitFunction, output: str | StructType, options: WaitOptions
) -> DataFrame:
    """Call ``fn`` as `ordered_wait` does, and append each answer as soon as it is there.

    The parameters, the result and the errors are the same.
    """
    return _wait(df, fn, output, options, ordered=False)


class OrderedWait:
    """The operator ``ordered_wait``."""

    name: ClassVar[str] = "ordered_wait"
    contract_version: ClassVar[int] = 2
    apply = staticmethod(ordered_wait)


class UnorderedWait:
    """The operator ``unordered_wait``."""

    name: ClassVar[str] = "unordered_wait"
    contract_version: ClassVar[int] = 2
    apply = staticmethod(unordered_wait)


def _wait(
    df: DataFrame,
    fn: WaitFunction,
    output: str | StructType,
    options: WaitOptions,
    *,
    ordered: bool,
) -> DataFrame:
    spec = checked(fn, options, ordered=ordered)
    check_carried(schema_of(df, spec.name), spec.name)
    session = df.sparkSession
    use_python_of_driver(session)
    keeping = check_keeping(df, options, spec.name)
    carrying = check_pending(df, spec, options)
    answers = _answers(session, output, spec)
    schema = _schema(df, answers, spec, options.error_column)
    inner = [f"c{position}" for position in range(len(schema))]
    query, batch_id = _batch(df, options.query, options.batch_id, spec.name)
    job: dict[str, Any] = {
        "spec": pickled(spec, spec.name),
        "name": spec.name,
        "layout": pickled(_layout(df, options.columns, spec), spec.name),
        "schema": answers.arrow,
        "types": answers.types,
        "names": inner,
        "time_zone": sessions.time_zone(session),
        "query": query,
        "batch_id": batch_id,
        "metrics": _sink(options.metrics, session, spec.name),
    }
    # Users' columns may have any names, also duplicates: the workers get columns named by number.
    numbered = df.toDF(*inner[: len(df.columns)])
    if keeping is not None and keeping.batch_ms is None:
        numbered = with_time(numbered, keeping, _TIME)
    numbered = numbered.withColumn(_PARTITION, F.spark_partition_id())
    target = StructType(
        [
            StructField(name, field.dataType, field.nullable, field.metadata)
            for name, field in zip(inner, schema, strict=True)
        ]
    )
    if df.isStreaming:
        query_listener.watch(session)
    if carrying is None:
        wait_job = WaitJob(**job, keeping=keeping)
        return numbered.mapInArrow(shipped(wait_job, spec.name), target).toDF(*schema.names)
    carry_job = CarryJob(**job, columns=columns_of(df), **attrs.asdict(carrying, recurse=False))
    query_listener.watch(session)
    stored_operators.remember(carrying.options)
    final_versions.remember(carrying.options)
    routed = routed_to_subtasks(numbered, _PARTITION, carrying.options)
    return routed.mapInArrow(shipped(carry_job, spec.name), target).toDF(*schema.names)


def _answers(session: SparkSession, output: str | StructType, spec: WaitSpec) -> OutputSchema:
    answers = output_schema(session, output, spec.name)
    if spec.on_error == COLUMN:
        refuse_not_null(answers.spark, spec.name)
    return answers


def _schema(df: DataFrame, answers: OutputSchema, spec: WaitSpec, error_column: Any) -> StructType:
    """Return the columns of the input, the answers and the error; refuse a name that is taken."""
    fields = list(answers.spark)
    checked_error_column(error_column, spec.on_error, spec.name)
    if spec.on_error == COLUMN:
        error = output_schema(df.sparkSession, f"e {ERROR_DDL}", spec.name).spark[0]
        fields.append(StructField(error_column, error.dataType, nullable=True))
    given = list(df.schema)
    taken = {field.name.lower(): field.name for field in given}
    for field in fields:
        if field.name.lower() in taken:
            raise ConfigurationError(
                f"{spec.name}: the output column {field.name!r} is there already; the columns are "
                f"{', '.join(taken.values())}"
            )
        taken[field.name.lower()] = field.name
    return StructType([*given, *fields])


def _layout(df: DataFrame, columns: Any, spec: WaitSpec) -> InputLayout:
    names = tuple(df.columns)
    chosen = (columns,) if isinstance(columns, str) else columns
    if not (chosen is None or isinstance(chosen, Sequence)):
        raise ConfigurationError(
            f"{spec.name}: columns is a column or several of them, not {columns!r}"
        )
    shown = (
        _all_positions(names, spec.name)
        if chosen is None
        else tuple(_position(names, one, "columns", spec.name) for one in chosen)
    )
    key: Any = spec.key
    if isinstance(key, tuple):
        key = tuple(_position(names, one, "key", spec.name) for one in key)
        for position in key:
            field = df.schema[position]
            if field.dataType.simpleString().startswith(("map", "array")):
                kind = field.dataType.simpleString()
                raise ConfigurationError(f"{spec.name}: key {field.name!r} is of type {kind}")
    read = dict.fromkeys([*shown, *(key if isinstance(key, tuple) else ())])
    check_readable([df.schema[position] for position in read], spec.name)
    return InputLayout(names=names, declared=declared_types_of(df.schema), shown=shown, key=key)


def _all_positions(names: tuple[str, ...], name: str) -> tuple[int, ...]:
    """Return the positions of all columns; refuse two of one name, which a row cannot have."""
    twice = next((one for one in names if names.count(one) > 1), None)
    if twice is not None:
        raise ConfigurationError(
            f"{name}: there is more than one column {twice!r}: rename one of them, or leave them "
            f"out of what the function gets, with columns=; the columns are {', '.join(names)}"
        )
    return tuple(range(len(names)))


def _position(names: tuple[str, ...], wanted: Any, what: str, name: str) -> int:
    if names.count(wanted) != 1:
        fault = "no column" if wanted not in names else "more than one column"
        raise ConfigurationError(
            f"{name}: {what}: there is {fault} {wanted!r}; the columns are {', '.join(names)}"
        )
    return names.index(wanted)


def _batch(df: DataFrame, query: Any, batch_id: Any, name: str) -> tuple[str, int | None]:
    """Return the query and the batch id for idempotency keys; a stream's workers know its own."""
    if query is not None and (not isinstance(query, str) or not query):
        raise ConfigurationError(f"{name}: query= is a name, not {query!r}")
    if batch_id is not None and (not isinstance(batch_id, int) or batch_id < 0):
        raise ConfigurationError(f"{name}: batch_id is a number from 0, not {batch_id!r}")
    if df.isStreaming:
        if batch_id is not None or query is not None:
            raise ConfigurationError(
                f"{name}: Spark names a stream's query and numbers its batches; leave query= and "
                "batch_id= out"
            )
        return str(uuid.uuid4()), None
    if (query is None) != (batch_id is None):
        raise ConfigurationError(f"{name}: query= and batch_id= are passed together")
    if query is not None:
        return query, batch_id
    spark = sessions.current_batch(df.sparkSession)
    if spark.query is not None and spark.batch_id is not None:
        return spark.query, spark.batch_id
    return str(uuid.uuid4()), 0


def _sink(metrics: Any, session: SparkSession, name: str) -> Any:
    if metrics is None:
        return log_sink(session)
    if not isinstance(metrics, WaitMetrics):
        raise ConfigurationError(f"{name}: metrics is a WaitMetrics(), not {metrics!r}")
    return metrics.sink(session, name)
