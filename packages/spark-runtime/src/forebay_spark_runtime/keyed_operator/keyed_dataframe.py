"""`keyed`: run functions with state on a DataFrame.

The result of ``.process``, ``.map`` and the other methods is an ordinary DataFrame, streaming if
the input streams. It works with any source, sink and trigger, in append mode. All arguments and
settings are checked here, on the driver, before anything runs.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, Unpack, overload

import attrs
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from forebay_engine.execution.arguments import (
    ERROR_COLUMN,
    check_event_time_used,
    checked_error_column,
    checked_error_limit,
    checked_late,
    checked_max_ahead,
    checked_restore,
)
from forebay_engine.execution.batch_functions import check_batch_function
from forebay_engine.execution.pickling import pickled_function
from forebay_engine.execution.record_methods import (
    broadcast_method,
    flat_map_callable,
    function_name,
    map_callable,
    record_methods,
)
from forebay_engine.versions import RestoreFrom
from forebay_engine.versions.format.keyed_by import KeyedBy
from forebay_spark_runtime.arrow.describing_columns import with_describing_columns
from forebay_spark_runtime.arrow.figures_column import FiguresColumn, with_figures_column
from forebay_spark_runtime.arrow.input_types import check_readable, schema_of
from forebay_spark_runtime.arrow.spark_objects import declared_types_of
from forebay_spark_runtime.arrow.spark_types import arrow_schema, without_lengths
from forebay_spark_runtime.driver import options as checks
from forebay_spark_runtime.driver import query_listener, stored_operators
from forebay_spark_runtime.driver.final_versions import final_versions
from forebay_spark_runtime.driver.observed_figures import observed
from forebay_spark_runtime.driver.operator_names import refuse_uid_twice
from forebay_spark_runtime.driver.options import KeyedOptions, MarkSource
from forebay_spark_runtime.driver.service_outages import packed_reports
from forebay_spark_runtime.driver.session import time_zone
from forebay_spark_runtime.driver.shipping import shipped
from forebay_spark_runtime.driver.worker_python import use_python_of_driver
from forebay_spark_runtime.event_time.idle_inputs import checked_idle_us
from forebay_spark_runtime.event_time.marks import (
    FIELD as MARK_FIELD,
)
from forebay_spark_runtime.event_time.marks import (
    check_column,
    checked_emits,
    marked,
    refuse_second_mark,
    remember,
    tagged,
    unfit_output_error,
    without_marks,
)
from forebay_spark_runtime.event_time.ticks import checked_ticks
from forebay_spark_runtime.keyed_operator.batch_input import KeyedInputLayout
from forebay_spark_runtime.keyed_operator.key_columns import KeyColumns, key_columns
from forebay_spark_runtime.keyed_operator.order_columns import order_types
from forebay_spark_runtime.keyed_operator.plan import (
    Input,
    output_schema,
    plan,
)
from forebay_spark_runtime.keyed_operator.reduce import running_reduce
from forebay_spark_runtime.keyed_operator.task import SubtaskJob
from forebay_spark_runtime.keyed_operator.with_state import MapWithState
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.aggregation import (
    AggregateFunction,
    ReduceFunction,
    check_defined,
    check_no_life,
)
from forebay_state_api.job.context import RuntimeContext
from forebay_state_api.job.functions import (
    FlatMapFunction,
    Function,
    KeyedBatchFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
)
from forebay_state_api.job.ttl import StateTtlConfig
from forebay_state_api.settings.engine_overrides import EngineOverrides, engine_overrides

__all__ = [
    "BroadcastConnectedDataFrame",
    "BroadcastDataFrame",
    "ConnectedDataFrame",
    "KeyedDataFrame",
    "broadcast",
    "keyed",
]

Schema: TypeAlias = str | StructType
"""Columns, as a DDL string (``"user string, n long"``) or a ``StructType``."""

_KINDS: Final = (Function, ReduceFunction, AggregateFunction)
"""Classes of functions. Each method of `KeyedDataFrame` takes one, or a plain callable."""

_batches: Final[dict[tuple[str, str], int]] = {}
"""(run, uid) → the batch for which ``foreachBatch`` last made that operator in this process."""


@attrs.frozen
class KeyedDataFrame:
    """A DataFrame and the columns by which its rows are routed; made by `keyed`.

    Every method that returns a DataFrame raises `ConfigurationError` for arguments that cannot
    work, before anything runs.
    """

    df: DataFrame
    keys: KeyColumns
    options: KeyedOptions
    marks: tuple[MarkSource, ...] = ()
    """The operators whose watermark it has."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"keyed(...) has no {name!r}: .process(fn, schema), .map, .flat_map, .reduce, or "
                ".connect(...).process make a DataFrame of it",
                name=name,
                obj=self,
            )

    def process(
        self,
        fn: KeyedProcessFunction[Any, Any, Any] | Callable[[Any, RuntimeContext], Any],
        schema: Schema,
    ) -> DataFrame:
        """Apply a function of each row and its context, which has access to state and timers.

        :param fn: a `KeyedProcessFunction`, or a callable ``fn(row, ctx)`` that returns or yields
            rows.
        :param schema: the columns of the result.
        """
        _check_function(
            fn, "process", KeyedProcessFunction, "a KeyedProcessFunction or fn(row, ctx)"
        )
        return _apply([self], fn, schema)

    def process_batch(self, fn: KeyedBatchFunction, schema: Schema) -> DataFrame:
        """Apply a function of columns: many rows at once, and the state of all their keys.

        :param fn: a `KeyedBatchFunction`.
        :param schema: the columns of the result.
        """
        _check_batch(fn, "process_batch")
        return _apply([self], fn, schema, by_columns=True)

    def map(self, fn: MapFunction[Any, Any] | Callable[[Any], Any], schema: Schema) -> DataFrame:
        """Apply a function that makes one row from each row.

        :param fn: a `MapFunction`, or a callable ``fn(row)`` that returns one row.
        :param schema: the columns of the result.
        """
        _check_function(fn, "map", MapFunction, "a MapFunction or fn(row)")
        return _apply([self], fn if isinstance(fn, MapFunction) else map_callable(fn), schema)

    def flat_map(
        self, fn: FlatMapFunction[Any, Any] | Callable[[Any], Any], schema: Schema
    ) -> DataFrame:
        """Apply a function that makes any number of rows from each row.

        :param fn: a `FlatMapFunction`, or a callable ``fn(row)`` that returns or yields rows.
        :param schema: the columns of the result.
        """
        _check_function(fn, "flat_map", FlatMapFunction, "a FlatMapFunction or fn(row)")
        function = fn if isinstance(fn, FlatMapFunction) else flat_map_callable(fn)
        return _apply([self], function, schema)

    def reduce(self, fn: ReduceFunction[Any] | Callable[[Any, Any], Any]) -> DataFrame:
        """Emit, for each row, the reduction of all rows of its key up to this row.

        The result has the columns of the input.

        :param fn: a `ReduceFunction`, or a callable ``fn(row, row)``, plain or ``async def``, that
            returns a row with the columns of the input.
        """
        _check_function(fn, "reduce", ReduceFunction, "a ReduceFunction or fn(row, row)")
        check_no_life(fn, "reduce")
        schema = without_lengths(self.df.schema)
        return _apply([self], running_reduce(fn, schema, self.options.uid), schema)

    def map_with_state(
        self,
        fn: Callable[[Any, Any], tuple[Any, Any]],
        schema: Schema,
        *,
        state_type: Any = None,
        ttl: StateTtlConfig | None = None,
        switch_ttl: bool = False,
    ) -> DataFrame:
        """Apply a function of a row and its key's value that returns a row and the new value.

        :param fn: a plain callable ``fn(row, value)`` → ``(row, value)``. ``value`` is ``None`` for
            a key without a value; returning ``None`` clears the value.
        :param schema: the columns of the result.
        :param state_type: the type of the value, as descriptors take types. Default: values of the
            plain kinds.
        :param ttl: the time to live of the value. Default: none.
        :param switch_ttl: whether the stored value may have a TTL if ``ttl`` is ``None``, or none
            otherwise, as in descriptors. Default: no.
        """
        function = MapWithState(
            fn, many=False, state_type=state_type, ttl=ttl, switch_ttl=switch_ttl
        )
        return _apply([self], function, schema)

    def flat_map_with_state(
        self,
        fn: Callable[[Any, Any], tuple[Any, Any]],
        schema: Schema,
        *,
        state_type: Any = None,
        ttl: StateTtlConfig | None = None,
        switch_ttl: bool = False,
    ) -> DataFrame:
        """Apply a function as `map_with_state` does, which returns any number of rows.

        :param fn: a plain callable ``fn(row, value)`` → ``(rows, value)``.

        The other parameters are as for `map_with_state`.
        """
        function = MapWithState(
            fn, many=True, state_type=state_type, ttl=ttl, switch_ttl=switch_ttl
        )
        return _apply([self], function, schema)

    @overload
    def connect(self, other: KeyedDataFrame) -> ConnectedDataFrame: ...
    @overload
    def connect(self, other: BroadcastDataFrame) -> BroadcastConnectedDataFrame: ...
    def connect(
        self, other: KeyedDataFrame | BroadcastDataFrame
    ) -> ConnectedDataFrame | BroadcastConnectedDataFrame:
        """Connect a second input, whose rows share the operator's state.

        :param other: a `keyed` DataFrame with the same number of key columns, of the same kinds,
            and with the same uid and options: rows of one key share their state. Or a `broadcast`
            DataFrame, every row of which reaches every subtask.

        Raises `ConfigurationError` where the two do not fit.
        """
        if isinstance(other, BroadcastDataFrame):
            _check_both_stream(self, other)
            checks.checked_order(other.df, other.order_by, self.options.uid)
            check_readable(other.df.schema, f"operator {self.options.uid!r}")
            return BroadcastConnectedDataFrame(self, other)
        if not isinstance(other, KeyedDataFrame):
            raise ConfigurationError(
                "connect takes another keyed(...) DataFrame, or broadcast(...) of "
                f"forebay_spark_runtime, not {type(other).__name__}"
            )
        _check_connected(self, other)
        return ConnectedDataFrame(self, other)


@attrs.frozen
class ConnectedDataFrame:
    """Two keyed inputs that share their state; made by `KeyedDataFrame.connect`."""

    first: KeyedDataFrame
    second: KeyedDataFrame

    def process(self, fn: KeyedCoProcessFunction[Any, Any, Any, Any], schema: Schema) -> DataFrame:
        """Apply a function with a method for the rows of each input.

        :param fn: a `KeyedCoProcessFunction`.
        :param schema: the columns of the result.

        Raises `ConfigurationError` for arguments that cannot work, before anything runs.
        """
        if not isinstance(fn, KeyedCoProcessFunction):
            raise _wrong_function_error("connect(...).process", "a KeyedCoProcessFunction", fn)
        return _apply([self.first, self.second], fn, schema)

    def process_batch(self, fn: KeyedBatchFunction, schema: Schema) -> DataFrame:
        """Apply a function of columns to the rows of both inputs, in one call with their order.

        :param fn: a `KeyedBatchFunction`; it gets the inputs as ``rows.first`` and ``rows.second``.
        :param schema: the columns of the result.

        Raises `ConfigurationError` for arguments that cannot work, before anything runs.
        """
        _check_batch(fn, "connect(...).process_batch")
        return _apply([self.first, self.second], fn, schema, by_columns=True)


@attrs.frozen
class BroadcastDataFrame:
    """A DataFrame of which every subtask gets every row; made by `broadcast`."""

    df: DataFrame
    order_by: str | Sequence[str] | None


@attrs.frozen
class BroadcastConnectedDataFrame:
    """A keyed and a broadcast input; made by `KeyedDataFrame.connect`."""

    keyed: KeyedDataFrame
    broadcast: BroadcastDataFrame

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"connect(broadcast(...)) has no {name!r}: .process and .process_batch make a "
                "DataFrame",
                name=name,
                obj=self,
            )

    def process(
        self, fn: KeyedBroadcastProcessFunction[Any, Any, Any, Any], schema: Schema
    ) -> DataFrame:
        """Apply a function with a method for the rows of each input.

        :param fn: a `KeyedBroadcastProcessFunction`.
        :param schema: the columns of the result.

        In a micro-batch all rows of the broadcast input come first, in every subtask in the same
        order. Raises `ConfigurationError` for arguments that cannot work, before anything runs.
        """
        if not isinstance(fn, KeyedBroadcastProcessFunction):
            raise _wrong_function_error(
                "connect(broadcast(...)).process", "a KeyedBroadcastProcessFunction", fn
            )
        return _apply([self.keyed, self.broadcast], fn, schema)

    def process_batch(self, fn: KeyedBatchFunction, schema: Schema) -> DataFrame:
        """Apply a function of columns to the keyed input, with a method for broadcast rows.

        :param fn: a `KeyedBatchFunction` that defines ``process_broadcast_element(row, ctx)``, as a
            `KeyedBroadcastProcessFunction` does.
        :param schema: the columns of the result.

        Raises `ConfigurationError` for arguments that cannot work, before anything runs.
        """
        _check_batch(fn, "connect(broadcast(...)).process_batch")
        if broadcast_method(fn) is None:
            raise ConfigurationError(
                f"{function_name(fn)} does not define process_broadcast_element(row, ctx), which "
                "gets the rows of the broadcast input"
            )
        return _apply([self.keyed, self.broadcast], fn, schema, by_columns=True)


def broadcast(df: DataFrame, *, order_by: str | Sequence[str] | None = None) -> BroadcastDataFrame:
    """Send every row of ``df`` to every subtask, as the second input of ``keyed(...).connect``.

    It is not Spark's function of that name, which is a hint for joins.

    :param df: the input; a stream if the keyed input is one, and bounded otherwise.
    :param order_by: columns by which the rows of a micro-batch are sorted. Rows that are equal in
        them, and all rows without it, come in an order that is the same in every subtask and when
        the batch is repeated, but has no meaning. Default: no sorting.

    Raises `ConfigurationError` if ``df`` is no DataFrame; ``connect`` checks the rest.
    """
    checks.checked_dataframe(df, "broadcast() takes a DataFrame of Spark")
    return BroadcastDataFrame(df, order_by)


def keyed(
    df: DataFrame,
    *columns: str,
    uid: str,
    key_alias: Mapping[str, str] | None = None,
    parallelism: int | None = None,
    max_parallelism: int = 128,
    query: str | None = None,
    batch_id: int | None = None,
    state_dir: str | os.PathLike[str] | None = None,
    backend: str | None = None,
    order_by: str | Sequence[str] | None = None,
    event_time: str | None = None,
    allowed_lateness: timedelta | float | None = None,
    late: Literal["process", "drop", "column"] = "process",
    emits_event_time: str | None = None,
    idle_after: str | timedelta | None = None,
    max_event_time_ahead: str | timedelta | None = None,
    fire_at_end: bool | None = None,
    ticks: str | timedelta | None = None,
    new_state: bool = False,
    restore_from: str | RestoreFrom | None = None,
    allow_non_restored: bool = False,
    on_error: Literal["fail", "column"] = "fail",
    error_column: str = ERROR_COLUMN,
    error_limit: int | None = None,
    **settings: Unpack[EngineOverrides],
) -> KeyedDataFrame:
    """Key ``df`` by ``columns``.

    :param df: the input, bounded or streaming, of classic Spark or Spark Connect.
    :param columns: names of the key columns, at least one.
    :param uid: name of the operator's state within the query. Keep it when the job changes.
    :param key_alias: key column → the name under which stored state knows it, for columns that were
        renamed. State is not continued under a key column of another name. Default: none.
    :param parallelism: number of subtasks, each with its range of key groups. A change at the next
        start is a rescale. Default: Spark's default parallelism, at most ``max_parallelism``.
    :param max_parallelism: number of key groups, fixed for the life of the state. Default: 128.
    :param query: name of the query, where Spark gives no query id: in ``foreachBatch`` under Spark
        Connect, and on a bounded DataFrame whose state is to be kept. Default: Spark's.
    :param batch_id: number of the micro-batch, where Spark gives none. Default: Spark's; 0 on a
        bounded DataFrame.
    :param state_dir: directory or URL below which state is stored. A bounded DataFrame without
        ``query`` stores nothing. Default: the setting ``spark.forebay.state.dir``.
    :param backend: name of the state backend. Default: the setting ``spark.forebay.state.backend``.
    :param order_by: columns by which each subtask sorts the rows of a micro-batch before it runs
        them. A total order makes the order of rows repeatable where several source splits meet.
        Default: no sorting.
    :param event_time: name of the timestamp column that the watermark and event-time timers follow.
        Default: no event time.
    :param allowed_lateness: how far the watermark stays behind the latest event time, as a
        timedelta or in seconds. Default: 0.
    :param late: the action for a late row, whose event time is not after the watermark.
        ``"process"`` passes it to the function, ``"drop"`` counts and drops it, and ``"column"``
        emits a row for it: the struct ``late`` describes it, the other columns are null. Default:
        ``"process"``.
    :param emits_event_time: name of the output's column of event times, of type timestamp, for
        which the watermark goes on to Spark's operators behind this one, such as windows, and to
        the next `keyed`. For streams. Default: it ends here.
    :param idle_after: the silence after which an input does not hold the watermark, and after which
        the watermark goes on if all inputs are silent: ``"5 minutes"``, or a timedelta. It needs
        ``ticks``. Default: an input without event times in a micro-batch does not hold the
        watermark, which does not move while nothing comes.
    :param max_event_time_ahead: how far ahead of the micro-batch's time an event time may be:
        ``"1 hour"``, or a timedelta. Rows beyond it do not move the watermark, are counted as
        ``rows_ahead``, and are treated as late rows are. Default: no bound.
    :param fire_at_end: whether the end of a bounded DataFrame fires all event-time timers, after
        its last row. Default: only if the state is dropped at the end, as without ``query=``.
        ``True`` is refused for a stream and in ``foreachBatch``.
    :param ticks: the time after which a stream without new rows runs a micro-batch, in which due
        timers fire: ``"10 seconds"``, or a timedelta. Give it to one operator of a query, or under
        Spark Connect to each; it may change at a restart. Needs pyspark 4.0 or newer. Default:
        micro-batches for rows only.
    :param new_state: whether the operator is new, or comes back, in a query that is past its first
        micro-batch. Default: ``False``.
    :param restore_from: the operator whose state to begin with: a query's id or name, or a
        `RestoreFrom`. Only read where the operator would begin with empty state. Default: begin
        with empty state.
    :param allow_non_restored: whether ``restore_from`` may leave behind states that the function
        does not declare. Default: ``False``.
    :param on_error: the action for a record or timer whose function fails. ``"fail"`` fails the
        micro-batch; ``"column"`` undoes what the record changed and emits a row for it, whose
        other columns are null. Default: ``"fail"``.
    :param error_column: name of the struct for errors; only with ``on_error="column"``. Default:
        ``"error"``.
    :param error_limit: number of failed records that a subtask accepts in a micro-batch; above it
        the micro-batch fails. Only with ``on_error="column"``. Default: 1000.
    :param settings: settings of the engine for this operator; see `EngineOverrides`.

    The settings are ``spark.forebay.in-flight-limit`` and so on; ``forebay config`` lists them and
    their defaults. Raises `ConfigurationError` for arguments that cannot work.
    """
    checks.checked_dataframe(df)
    schema = schema_of(df, f"operator {uid!r}")
    options = checks.operator_options(
        df,
        uid=uid,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        query=query,
        batch_id=batch_id,
        order_by=order_by,
        new_state=new_state,
        restore=checked_restore(restore_from, allow_non_restored=allow_non_restored, uid=uid),
        overrides={
            "state.dir": state_dir,
            "state.backend": backend,
            **engine_overrides(settings, keyed),
        },
    )
    keys = key_columns(schema, columns, options.uid, key_alias)
    check_readable(schema, f"operator {options.uid!r}")
    column, lateness_us = checks.checked_event_time(df, event_time, allowed_lateness, options.uid)
    who = f"operator {options.uid!r}"
    ticks_ms = checked_ticks(df, ticks, options.uid)
    options = attrs.evolve(
        options,
        event_time=column,
        lateness_us=lateness_us,
        late=checked_late(late, event_time, options.uid),
        emits_event_time=checked_emits(
            df,
            emits_event_time,
            event_time,
            sends_figures=options.settings["progress-figures"],
            uid=options.uid,
        ),
        idle_after_us=checked_idle_us(df, idle_after, column, ticks_ms, options.uid, late=late),
        max_ahead_us=checked_max_ahead(max_event_time_ahead, column, options.uid),
        error_limit=checked_error_limit(on_error, error_limit, options.uid),
        error_column=checked_error_column(error_column, on_error, who),
        fire_at_end=checks.checked_end(fire_at_end, df, options),
        ticks_ms=ticks_ms,
    )
    return KeyedDataFrame(df, keys, options)


def _check_connected(first: KeyedDataFrame, second: KeyedDataFrame) -> None:
    uid = first.options.uid
    if first.keys.kinds() != second.keys.kinds():
        raise ConfigurationError(
            f"operator {uid!r}: connected inputs are keyed by columns of the same kinds, in order; "
            f"got {first.keys} and {second.keys}. Cast one of them"
        )
    _check_both_stream(first, second)
    checks.agreeing(first.options, second.options)
    _order_types([first, second])


def _order_types(sides: Sequence[KeyedDataFrame]) -> tuple[Any, ...]:
    """Return the types to which the ``order_by`` columns of two keyed inputs are widened."""
    schemas = [side.df.schema for side in sides]
    orders = [side.options.order_by for side in sides]
    return tuple(order_types(schemas, orders, sides[0].options.uid))


def _check_both_stream(first: KeyedDataFrame, second: KeyedDataFrame | BroadcastDataFrame) -> None:
    if first.df.isStreaming != second.df.isStreaming:
        raise ConfigurationError(
            f"operator {first.options.uid!r}: connect two streams, or two bounded DataFrames"
        )


def _check_function(fn: Any, method: str, wanted: type, spelled: str) -> None:
    """Refuse anything but an instance of ``wanted`` and a plain callable."""
    if not isinstance(fn, wanted) and (isinstance(fn, (*_KINDS, type)) or not callable(fn)):
        raise _wrong_function_error(method, spelled, fn)
    if isinstance(fn, wanted):
        check_defined(fn)


def _check_batch(fn: Any, method: str) -> None:
    if not isinstance(fn, KeyedBatchFunction):
        raise _wrong_function_error(method, "a KeyedBatchFunction", fn)
    check_batch_function(fn)


def _wrong_function_error(method: str, wanted: str, fn: object) -> ConfigurationError:
    message = f"{method} takes {wanted}, not {type(fn).__name__} {fn!r}"
    if isinstance(fn, KeyedBatchFunction):
        message += "; .process_batch runs a batch function"
    if isinstance(fn, type):
        message += "; pass an instance, not the class"
    return ConfigurationError(message)


def _apply(
    sides: Sequence[KeyedDataFrame | BroadcastDataFrame],
    fn: Any,
    schema: Schema,
    *,
    by_columns: bool = False,
) -> DataFrame:
    """Return the DataFrame whose workers run ``fn``; the first of ``sides`` is keyed."""
    sides = [*map(_without_marks, sides)]
    first = sides[0]
    assert isinstance(first, KeyedDataFrame)
    keyed_sides = [side for side in sides if isinstance(side, KeyedDataFrame)]
    session = first.df.sparkSession
    options = attrs.evolve(
        first.options,
        keyed_uuid=str(uuid.uuid4()),
        outages=packed_reports(session),
        is_bounded=query_listener.is_bounded(first.df, first.options.batch),
        marks=tuple(side.marks for side in keyed_sides),
        keyed_by=KeyedBy([side.keys.stored() for side in keyed_sides]),
    )
    use_python_of_driver(session)
    record_methods(fn)
    if options.event_time is not None:
        emits = options.emits_event_time is not None
        check_event_time_used(fn, options.late, options.uid, emits=emits)
    now_ms = time.time_ns() // 1_000_000
    started = query_listener.ask_this_batch(session, options.batch, options.uid)
    if started is not None:
        checkpoint, now_ms = started
        options = attrs.evolve(options, checkpoint=checkpoint)
    target = output_schema(session, schema, options.uid)
    output, described = with_describing_columns(
        target.spark,
        None if options.error_limit is None else options.error_column,
        options.late,
        f"operator {options.uid!r}",
    )
    inputs = [_input(side, options.uid) for side in sides]
    refuse_uid_twice([one.df for one in inputs], options.uid)
    if options.emits_event_time is not None:
        check_column(target.spark, options.emits_event_time, options.uid)
        refuse_second_mark([one.df for one in inputs], options.uid)
    streams = first.df.isStreaming
    sends = streams and options.settings["progress-figures"]
    sent = _sent_schema(output, options) if sends else None
    job = SubtaskJob(
        options=options,
        function=pickled_function(fn, options.uid, cloudpickle.dumps),
        function_name=function_name(fn),
        key_type=cloudpickle.dumps(first.keys.key_type()),
        layout=_layout(keyed_sides, inputs),
        schema=target.arrow,
        output_schema=arrow_schema(output),
        described=described,
        sent_schema=None if sent is None else arrow_schema(sent),
        types=target.types,
        time_zone=time_zone(session),
        now_us=None if streams else now_ms * 1_000,
        by_columns=by_columns,
    )
    routed = plan(inputs, options)
    if streams:
        query_listener.watch(session)
        stored_operators.remember(options)
        final_versions.remember(options)
    else:
        _enter_batch(options)
    task = shipped(job, f"operator {options.uid!r}")
    if sent is None:
        return routed.mapInArrow(task, output)
    made = routed.mapInArrow(task, sent)
    if options.emits_event_time is None:
        return observed(made, options.uid)
    remember(options)
    return tagged(observed(marked(made), options.uid), options.emits_event_time)


def _without_marks(
    side: KeyedDataFrame | BroadcastDataFrame,
) -> KeyedDataFrame | BroadcastDataFrame:
    """Return an input without the watermarks of keyed operators before it, which it follows."""
    if isinstance(side, BroadcastDataFrame):
        return side
    follows, uid = side.options.event_time is not None, side.options.uid
    df, marks = without_marks(side.df, follows=follows, uid=uid)
    return attrs.evolve(side, df=df, marks=marks if follows else ())


def _sent_schema(output: StructType, options: KeyedOptions) -> StructType | None:
    """Return ``output`` with the hidden columns for figures and the watermark.

    Returns ``None`` if one of its columns can neither be null nor be made empty; raises
    `ConfigurationError` if the watermark is to go on then.
    """
    emits = options.emits_event_time is not None
    mark = MARK_FIELD if emits else None
    sent = with_figures_column(output, f"operator {options.uid!r}", mark)
    if FiguresColumn.fits(arrow_schema(sent)):
        return sent
    if emits:
        raise unfit_output_error(options.uid)
    return None


def _input(side: KeyedDataFrame | BroadcastDataFrame, uid: str) -> Input:
    if isinstance(side, BroadcastDataFrame):
        return Input(side.df, None, checks.checked_order(side.df, side.order_by, uid))
    return Input(side.df, side.keys, side.options.order_by)


def _layout(sides: Sequence[KeyedDataFrame], inputs: Sequence[Input]) -> KeyedInputLayout:
    """Return the layout of ``inputs``, of which ``sides`` are keyed."""

    def positions(side: KeyedDataFrame, names: Sequence[str]) -> tuple[int, ...]:
        return tuple(side.df.columns.index(name) for name in names)

    return KeyedInputLayout(
        uid=sides[0].options.uid,
        names=tuple(tuple(one.df.columns) for one in inputs),
        declared=tuple(declared_types_of(one.df.schema) for one in inputs),
        keys=tuple(positions(side, side.keys.names) for side in sides),
        order=tuple(positions(side, side.options.order_by) for side in sides),
        order_types=_order_types(sides) if len(sides) > 1 else (),
        broadcast_order=inputs[-1].order_by if inputs[-1].keys is None else None,
        event_times=tuple(
            (side.df.columns.index(column), side.options.lateness_us)
            for side in sides
            if (column := side.options.event_time) is not None
        ),
        idle_after_us=sides[0].options.idle_after_us,
        max_ahead_us=sides[0].options.max_ahead_us,
    )


def _enter_batch(options: KeyedOptions) -> None:
    """Refuse a second operator of one uid in one ``foreachBatch``: it would undo the first."""
    batch, uid = options.batch, options.uid
    if batch.run_id is None or batch.batch_id is None:
        return
    mark = (f"{batch.query} {batch.run_id}", uid)
    if _batches.get(mark) == batch.batch_id:
        raise ConfigurationError(
            f"keyed() was called twice for operator {uid!r} in batch {batch.batch_id}: the second "
            "one would start from the same version and undo the first. Give each a uid of its own "
            "(in a loop over tenants, say, the tenant's name in it)"
        )
    _batches[mark] = batch.batch_id
    stored_operators.warn_in_first_batch(options)
