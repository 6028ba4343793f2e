"""`ordered_wait` and `unordered_wait`: from a DataFrame to one with the answers beside its rows.

The result is an ordinary DataFrame, streaming if the input streams. Everything that can be wrong
about the arguments is an error here, on the driver, before anything runs.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import attrs
from pyspark.sql import functions as F  # noqa: N812 - the customary name
from pyspark.sql.types import StructField, StructType

from forebay_spark_runtime.arrow.input_types import check_carried, check_readable, schema_of
from forebay_spark_runtime.driver import query_listener, stored_operators
from forebay_spark_runtime.driver import session as sessions
from forebay_spark_runtime.driver.shipping import shipped
from forebay_spark_runtime.driver.worker_python import use_python_of_driver
from forebay_spark_runtime.keyed_operator.plan import Hidden, OutputSchema, output_schema
from forebay_spark_runtime.waiting.arguments import Batch, Duration, Rate, Retry
from forebay_spark_runtime.waiting.arrow_in import InputLayout
from forebay_spark_runtime.waiting.arrow_out import ERROR_DDL
from forebay_spark_runtime.waiting.carry_job import WAIT, CarryJob
from forebay_spark_runtime.waiting.carry_plan import check_pending, columns_of, routed_to_subtasks
from forebay_spark_runtime.waiting.reports import WaitMetrics, log_sink
from forebay_spark_runtime.waiting.spec import COLUMN, WaitSpec, checked, pickled
from forebay_spark_runtime.waiting.task import WaitJob
from forebay_state_api.errors import ConfigurationError

ERROR_COLUMN: Final = "error"
"""The name of the error's column unless another one is given."""

_PARTITION: Final = f"{Hidden.PREFIX}partition"


def ordered_wait(
    df: Any,
    fn: Callable[[Any, Any], Any],
    output: Any,
    *,
    columns: str | Sequence[str] | None = None,
    capacity: int = 100,
    buffer: int | None = None,
    try_timeout: Duration | None = None,
    timeout: Duration | None = None,
    retry: Retry | None = None,
    rate: Rate | None = None,
    on_error: str | Callable[[Any, BaseException], Any] = "fail",
    error_column: str = ERROR_COLUMN,
    key: str | Sequence[str] | Callable[[Any], Any] | None = None,
    batch: Batch | None = None,
    hedge: Duration | None = None,
    resources: Callable[[], Any] | None = None,
    name: str | None = None,
    query: str | None = None,
    batch_id: int | None = None,
    metrics: WaitMetrics | None = None,
    pending: str = WAIT,
    uid: str | None = None,
    state_dir: str | Path | None = None,
    parallelism: int | None = None,
    carry_after: Duration | None = None,
    new_state: bool = False,
) -> Any:
    """Call ``fn`` for each row of ``df``, many at a time, and append the answers in row order.

    Order is kept within each partition. The micro-batch ends when every row has its answer; a row
    that fails for good fails the micro-batch, which Spark runs again. Nothing is stored.

    :param fn: ``async def fn(row, client)``, or a plain function of the two, which runs on a
        thread; with ``batch`` ``fn(rows, client)``. ``client`` is ``None`` without ``resources``.
        An answer is a dict of the output columns, a tuple in their order, or the bare value of
        one column; a list of answers is as many rows.
    :param output: the columns to append, a DDL string or a ``StructType``.
    :param columns: the columns that ``fn`` gets as the row; all if not given.
    :param capacity: calls under way at one time, in each partition.
    :param buffer: answers that may wait for an earlier one besides, in each partition; 10,000 or
        100 for each call of the capacity, whichever is more, unless given.
    :param try_timeout: seconds (or a ``timedelta``) that one call may take.
    :param timeout: seconds for all tries of a row, with the waiting between them.
    :param retry: when a failed call is made again; needs ``timeout``.
    :param rate: how many tries per second.
    :param on_error: what becomes of a row that failed for good: ``"fail"``, ``"column"`` (the
        error goes into the struct ``error_column``, the answer is null), or a function of the row
        and its error that returns the answer.
    :param key: column, columns or function of the row: calls of one key run one after another.
    :param batch: one call for several rows, see `Batch`.
    :param hedge: seconds after which a second call is made; the first answer wins.
    :param resources: returns a context manager whose value is the client; it is opened once per
        worker process, and used by all batches.
    :param name: names the operator in idempotency keys, metrics and messages; the function's name
        if not given.
    :param query: with ``batch_id``, for idempotency keys where Spark names no query: in
        ``foreachBatch`` under Spark Connect, and on bounded DataFrames.
    :param metrics: collects what is counted.
    :param pending: ``"wait"``: the micro-batch ends when every row has its answer. ``"carry"``:
        rows that have none in time are stored, and called for again in the next micro-batch. Only
        on streams that go on, with asynchronous functions; the reference says what else it takes.

    The others go with ``pending="carry"`` alone:

    :param uid: names the stored rows within the query. Keep it when the job changes.
    :param state_dir: directory or URL below which they are (``spark.forebay.state.dir``).
    :param parallelism: subtasks that the rows are shuffled to, at most 128; Spark's default
        parallelism if not given. Another number at the next start is a rescale.
    :param carry_after: seconds after the last row was taken until late rows are stored; 1 if not
        given.
    :param new_state: the operator is new in a query that is past its first batch, or comes back.

    Raises `ConfigurationError` for whatever cannot work.
    """
    return _wait(ordered=True, **locals())


def unordered_wait(
    df: Any,
    fn: Callable[[Any, Any], Any],
    output: Any,
    *,
    columns: str | Sequence[str] | None = None,
    capacity: int = 100,
    buffer: int | None = None,
    try_timeout: Duration | None = None,
    timeout: Duration | None = None,
    retry: Retry | None = None,
    rate: Rate | None = None,
    on_error: str | Callable[[Any, BaseException], Any] = "fail",
    error_column: str = ERROR_COLUMN,
    key: str | Sequence[str] | Callable[[Any], Any] | None = None,
    batch: Batch | None = None,
    hedge: Duration | None = None,
    resources: Callable[[], Any] | None = None,
    name: str | None = None,
    query: str | None = None,
    batch_id: int | None = None,
    metrics: WaitMetrics | None = None,
    pending: str = WAIT,
    uid: str | None = None,
    state_dir: str | Path | None = None,
    parallelism: int | None = None,
    carry_after: Duration | None = None,
    new_state: bool = False,
) -> Any:
    """`ordered_wait`, with the answers as they come instead of in row order."""
    return _wait(ordered=False, **locals())


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
    *,
    df: Any,
    fn: Any,
    output: Any,
    ordered: bool,
    columns: Any,
    error_column: Any,
    query: Any,
    batch_id: Any,
    metrics: Any,
    pending: Any,
    uid: Any,
    state_dir: Any,
    parallelism: Any,
    carry_after: Any,
    new_state: Any,
    **options: Any,
) -> Any:
    spec = checked(fn, ordered=ordered, **options)
    check_carried(schema_of(df, spec.name), spec.name)
    session = df.sparkSession
    use_python_of_driver(session)
    stateful = check_pending(
        df,
        spec,
        pending,
        uid=uid,
        state_dir=state_dir,
        parallelism=parallelism,
        carry_after=carry_after,
        new_state=new_state,
    )
    answers = _answers(session, output, spec)
    schema = _schema(df, answers, spec, error_column)
    inner = [f"c{position}" for position in range(len(schema))]
    known_query, known_batch = _batch(df, query, batch_id, spec.name)
    told: dict[str, Any] = {
        "spec": pickled(spec, spec.name),
        "name": spec.name,
        "layout": pickled(_layout(df, columns, spec), spec.name),
        "schema": answers.arrow,
        "types": answers.types,
        "names": inner,
        "time_zone": session.conf.get("spark.sql.session.timeZone"),
        "query": known_query,
        "batch_id": known_batch,
        "metrics": _sink(metrics, session, spec.name),
    }
    # Columns may have any names, two the same one: on their way they have ours.
    carried = df.toDF(*inner[: len(df.columns)]).withColumn(_PARTITION, F.spark_partition_id())
    target = StructType(
        [
            StructField(name, field.dataType, field.nullable, field.metadata)
            for name, field in zip(inner, schema, strict=True)
        ]
    )
    if stateful is None:
        return carried.mapInArrow(shipped(WaitJob(**told), spec.name), target).toDF(*schema.names)
    carrying = CarryJob(**told, columns=columns_of(df), **attrs.asdict(stateful, recurse=False))
    query_listener.watch(session)
    stored_operators.remember(stateful.options)
    routed = routed_to_subtasks(carried, _PARTITION, stateful.options)
    return routed.mapInArrow(shipped(carrying, spec.name), target).toDF(*schema.names)


def _answers(session: Any, output: Any, spec: WaitSpec) -> OutputSchema:
    answers = output_schema(session, output, spec.name)
    strict = [field.name for field in answers.spark if not field.nullable]
    if strict and spec.on_error == COLUMN:
        raise ConfigurationError(
            f'{spec.name}: with on_error="column" the answer of a failed row is null; declare '
            f"{', '.join(strict)} without NOT NULL"
        )
    return answers


def _schema(df: Any, answers: OutputSchema, spec: WaitSpec, error_column: Any) -> StructType:
    """The input's columns, the answers' and the error's; no new name may be there already."""
    fields = list(answers.spark)
    if not isinstance(error_column, str) or not error_column:
        raise ConfigurationError(f"{spec.name}: error_column is a name, not {error_column!r}")
    if error_column != ERROR_COLUMN and spec.on_error != COLUMN:
        raise ConfigurationError(f'{spec.name}: error_column= goes with on_error="column"')
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


def _layout(df: Any, columns: Any, spec: WaitSpec) -> InputLayout:
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
    return InputLayout(names=names, shown=shown, key=key)


def _all_positions(names: tuple[str, ...], name: str) -> tuple[int, ...]:
    """Where all columns are; two of one name could not be told apart in a row."""
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


def _batch(df: Any, query: Any, batch_id: Any, name: str) -> tuple[str, int | None]:
    """What names the calls: query and batch, as far as the driver knows them."""
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


def _sink(metrics: Any, session: Any, name: str) -> Any:
    if metrics is None:
        return log_sink(session)
    if not isinstance(metrics, WaitMetrics):
        raise ConfigurationError(f"{name}: metrics is a WaitMetrics(), not {metrics!r}")
    return metrics.sink(session, name)
