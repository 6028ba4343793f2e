"""`keyed`: from a DataFrame to a stateful operator on it.

The result of ``.process`` and its like is an ordinary DataFrame, streaming if the input streams:
any source, sink and trigger, append mode. Everything that can be wrong about the arguments and the
settings is an error here, on the driver, before anything runs.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
from pyspark import cloudpickle

from forebay_spark_runtime.arrow.input_types import check_readable, schema_of
from forebay_spark_runtime.driver import options as checks
from forebay_spark_runtime.driver import query_listener, stored_operators
from forebay_spark_runtime.driver.options import KeyedOptions
from forebay_spark_runtime.driver.shipping import shipped
from forebay_spark_runtime.driver.worker_python import use_python_of_driver
from forebay_spark_runtime.keyed_operator.batch_input import KeyedInputLayout
from forebay_spark_runtime.keyed_operator.key_columns import KeyColumns, key_columns
from forebay_spark_runtime.keyed_operator.plan import Hidden, Input, output_schema, plan
from forebay_spark_runtime.keyed_operator.reduce import running_reduce
from forebay_spark_runtime.keyed_operator.task import SubtaskJob
from forebay_spark_runtime.keyed_operator.with_state import WithState
from forebay_state_api.engine.arguments import checked_restore
from forebay_state_api.engine.pickling import pickled_function
from forebay_state_api.engine.record_methods import (
    flat_map_callable,
    function_name,
    map_callable,
    record_methods,
    timer_method,
)
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.aggregation import (
    AggregateFunction,
    ReduceFunction,
    check_defined,
    check_no_life,
)
from forebay_state_api.job.functions import (
    FlatMapFunction,
    Function,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
)
from forebay_state_api.job.ttl import StateTtlConfig
from forebay_state_api.versions import RestoreFrom

__all__ = ["ConnectedDataFrame", "KeyedDataFrame", "keyed"]

_KINDS: Final = (Function, ReduceFunction, AggregateFunction)
"""What is called by its methods; a method takes one kind of them, or a plain callable."""

_batches: Final[dict[tuple[str, str], int]] = {}
"""(run, uid) → the batch for which ``foreachBatch`` last made that operator in this process."""


@attrs.frozen
class KeyedDataFrame:
    """A DataFrame whose rows will be routed by key; made by `keyed`."""

    df: Any
    keys: KeyColumns
    options: KeyedOptions

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            message = (
                f"keyed(...) has no {name!r}: .process(fn, schema), .map, .flat_map, .reduce, or "
                ".connect(...).process make a DataFrame of it"
            )
            raise AttributeError(message, name=name, obj=self)

    def process(self, fn: Any, schema: Any) -> Any:
        """Apply a `KeyedProcessFunction`, or a callable ``fn(row, ctx)`` that returns rows.

        ``schema`` is a DDL string or a ``StructType``. Returns a DataFrame.
        """
        _check_function(
            fn, "process", KeyedProcessFunction, "a KeyedProcessFunction or fn(row, ctx)"
        )
        return _apply([self], fn, schema)

    def map(self, fn: Any, schema: Any) -> Any:
        """Apply a `MapFunction`, or a callable of one row that returns one row."""
        _check_function(fn, "map", MapFunction, "a MapFunction or fn(row)")
        return _apply([self], fn if isinstance(fn, MapFunction) else map_callable(fn), schema)

    def flat_map(self, fn: Any, schema: Any) -> Any:
        """Apply a `FlatMapFunction`, or a callable of one row that returns or yields rows."""
        _check_function(fn, "flat_map", FlatMapFunction, "a FlatMapFunction or fn(row)")
        function = fn if isinstance(fn, FlatMapFunction) else flat_map_callable(fn)
        return _apply([self], function, schema)

    def reduce(self, fn: Any) -> Any:
        """Give out, for each row, the rows of its key so far reduced into one.

        ``fn`` is a `ReduceFunction` or a callable of two rows, plain or ``async def``; it returns a
        row of the input's schema, which is also the schema of the result.
        """
        _check_function(fn, "reduce", ReduceFunction, "a ReduceFunction or fn(row, row)")
        check_no_life(fn, "reduce")
        schema = self.df.schema
        return _apply([self], running_reduce(fn, schema), schema)

    def map_with_state(
        self,
        fn: Callable[[Any, Any], Any],
        schema: Any,
        *,
        state_type: Any = None,
        ttl: StateTtlConfig | None = None,
    ) -> Any:
        """Apply ``fn(row, value)`` → ``(row, value)``: one row out for each row in.

        ``value`` is what is kept for the row's key, ``None`` if there is nothing, and the one that
        is returned replaces it; ``None`` clears it. ``state_type`` is its type, as descriptors take
        it.
        """
        return _apply([self], WithState(fn, many=False, state_type=state_type, ttl=ttl), schema)

    def flat_map_with_state(
        self,
        fn: Callable[[Any, Any], Any],
        schema: Any,
        *,
        state_type: Any = None,
        ttl: StateTtlConfig | None = None,
    ) -> Any:
        """As `map_with_state`, with ``fn(row, value)`` → ``(rows, value)``: any number of rows."""
        return _apply([self], WithState(fn, many=True, state_type=state_type, ttl=ttl), schema)

    def connect(self, other: KeyedDataFrame) -> ConnectedDataFrame:
        """Two inputs whose rows of one key share their state.

        ``other`` is keyed by as many columns of the same kinds, with the same uid and options.
        """
        if not isinstance(other, KeyedDataFrame):
            message = f"connect takes another keyed(...) DataFrame, not {type(other).__name__}"
            raise ConfigurationError(message)
        _check_connected(self, other)
        return ConnectedDataFrame(self, other)


@attrs.frozen
class ConnectedDataFrame:
    """Two keyed inputs that share their state; made by `KeyedDataFrame.connect`."""

    first: KeyedDataFrame
    second: KeyedDataFrame

    def process(self, fn: Any, schema: Any) -> Any:
        """Apply a `KeyedCoProcessFunction`; returns a DataFrame of ``schema``."""
        if not isinstance(fn, KeyedCoProcessFunction):
            raise _wrong_function("connect(...).process", "a KeyedCoProcessFunction", fn)
        return _apply([self.first, self.second], fn, schema)


def keyed(
    df: Any,
    *columns: str,
    uid: str | None = None,
    parallelism: int | None = None,
    max_parallelism: int = 128,
    query: str | None = None,
    batch_id: int | None = None,
    state_dir: str | Path | None = None,
    backend: str | None = None,
    order_by: str | Sequence[str] | None = None,
    event_time: str | None = None,
    allowed_lateness: timedelta | float | None = None,
    new_state: bool = False,
    restore_from: str | RestoreFrom | None = None,
    allow_non_restored: bool = False,
    in_flight_limit: int | None = None,
    batch_size: int | None = None,
    page_size: int | None = None,
    read_ahead: bool | None = None,
    drain_timeout: float | str | None = None,
) -> KeyedDataFrame:
    """Key ``df`` by ``columns``.

    :param uid: names the operator's state within the query. Keep it when the job changes.
    :param parallelism: subtasks, each with its range of key groups; Spark's default parallelism if
        not given, at most ``max_parallelism``. Another number at the next start is a rescale.
    :param max_parallelism: number of key groups, fixed for the life of the state.
    :param query: names the state where Spark gives no query id: in ``foreachBatch`` under Spark
        Connect, and on a bounded DataFrame whose state is to be kept.
    :param batch_id: the batch, where Spark gives none; on a bounded DataFrame 0 if not given.
    :param state_dir: directory or URL below which state lives (``spark.forebay.state.dir``). A
        bounded DataFrame without ``query`` keeps nothing, wherever that is.
    :param backend: name of the state backend (``spark.forebay.state.backend``).
    :param order_by: columns by which each subtask sorts the rows of a batch before it runs them; a
        total order makes the order of rows repeatable where several source splits meet.
    :param event_time: the column, of type timestamp, that event-time timers go by; for functions
        with ``on_timer``.
    :param allowed_lateness: how long the watermark stays behind the latest event time, as a
        timedelta or in seconds; nothing if not given.
    :param new_state: the operator is new in a query that is past its first batch, or comes back.
    :param restore_from: begin with another operator's state instead of empty: a query's id or name,
        or a `RestoreFrom`. Looked at only where empty state would be opened.
    :param allow_non_restored: let ``restore_from`` leave states that the function does not declare.

    The other arguments are the settings of the same names; see ``forebay config``. Raises
    `ConfigurationError` for whatever cannot work.
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
            "in-flight-limit": in_flight_limit,
            "batch-size": batch_size,
            "page-size": page_size,
            "read-ahead": read_ahead,
            "drain-timeout": drain_timeout,
        },
    )
    keys = key_columns(schema, columns, options.uid)
    check_readable(schema, f"operator {options.uid!r}")
    column, lateness_us = checks.checked_event_time(df, event_time, allowed_lateness, options.uid)
    options = attrs.evolve(options, event_time=column, lateness_us=lateness_us)
    return KeyedDataFrame(df, keys, options)


def _check_connected(first: KeyedDataFrame, second: KeyedDataFrame) -> None:
    uid = first.options.uid
    if first.keys.families() != second.keys.families():
        message = (
            f"operator {uid!r}: connected inputs are keyed by columns of the same kinds, in order; "
            f"got {first.keys} and {second.keys}"
        )
        raise ConfigurationError(message)
    if first.df.isStreaming != second.df.isStreaming:
        message = f"operator {uid!r}: connect two streams, or two bounded DataFrames"
        raise ConfigurationError(message)
    checks.agreeing(first.options, second.options)
    orders = [side.options.order_by for side in (first, second)]
    checks.ordered_alike(first.df, second.df, orders, uid)


def _check_function(fn: Any, method: str, wanted: type, spelled: str) -> None:
    """Accept an instance of ``wanted`` or a plain callable, but no function of another kind."""
    if not isinstance(fn, wanted) and (isinstance(fn, (*_KINDS, type)) or not callable(fn)):
        raise _wrong_function(method, spelled, fn)
    if isinstance(fn, wanted):
        check_defined(fn)


def _wrong_function(method: str, wanted: str, fn: object) -> ConfigurationError:
    message = f"{method} takes {wanted}, not {type(fn).__name__} {fn!r}"
    if isinstance(fn, type):
        message += "; pass an instance, not the class"
    return ConfigurationError(message)


def _apply(sides: Sequence[KeyedDataFrame], fn: Any, schema: Any) -> Any:
    """The DataFrame that runs ``fn`` in its workers."""
    first = sides[0]
    session = first.df.sparkSession
    options = attrs.evolve(first.options, keyed_uuid=str(uuid.uuid4()))
    use_python_of_driver(session)
    record_methods(fn)
    _check_timers(fn, options)
    now_ms = time.time_ns() // 1_000_000
    if (said := query_listener.ask_this_batch(session, options.batch, options.uid)) is not None:
        checkpoint, now_ms = said
        options = attrs.evolve(options, checkpoint=checkpoint)
    target = output_schema(session, schema, options.uid)
    inputs = [Input(side.df, side.keys, side.options.order_by) for side in sides]
    job = SubtaskJob(
        options=options,
        function=pickled_function(fn, options.uid, cloudpickle.dumps),
        function_name=function_name(fn),
        key_type=cloudpickle.dumps(first.keys.key_type()),
        layout=_layout(sides, inputs),
        schema=target.arrow,
        types=target.types,
        time_zone=session.conf.get("spark.sql.session.timeZone"),
        streaming=first.df.isStreaming,
    )
    routed = plan(inputs, options, now_ms=now_ms)
    if first.df.isStreaming:
        query_listener.watch(session)
        stored_operators.remember(options)
    else:
        _enter_batch(options)
    return routed.mapInArrow(shipped(job, f"operator {options.uid!r}"), target.spark)


def _check_timers(fn: Any, options: KeyedOptions) -> None:
    if options.event_time is not None and timer_method(fn) is None:
        message = (
            f"operator {options.uid!r}: event_time= is for functions with timers, and "
            f"{function_name(fn)} has no on_timer method"
        )
        raise ConfigurationError(message)


def _layout(sides: Sequence[KeyedDataFrame], inputs: Sequence[Input]) -> KeyedInputLayout:
    options = sides[0].options
    columns = inputs[0].df.columns
    keys = inputs[0].keys.names
    single = len(inputs) == 1
    return KeyedInputLayout(
        uid=options.uid,
        names=tuple(tuple(one.df.columns) for one in inputs),
        key_names=keys,
        key_positions=tuple(columns.index(name) for name in keys),
        order=tuple(
            inputs[0].carried(name) if single else f"{Hidden.ORDER}{number}"
            for number, name in enumerate(options.order_by)
        ),
        event_times=tuple(
            (side.df.columns.index(column), side.options.lateness_us)
            for side in sides
            if (column := side.options.event_time) is not None
        ),
    )


def _enter_batch(options: KeyedOptions) -> None:
    """In ``foreachBatch`` a second operator of one uid in one batch would undo the first one."""
    batch, uid = options.batch, options.uid
    if batch.run_id is None or batch.batch_id is None:
        return
    mark = (f"{batch.query} {batch.run_id}", uid)
    if _batches.get(mark) == batch.batch_id:
        message = (
            f"keyed() was called twice for operator {uid!r} in batch {batch.batch_id}: the second "
            "one would start from the same version and undo the first. Give each a uid of its own "
            "(in a loop over tenants, say, the tenant's name in it)"
        )
        raise ConfigurationError(message)
    _batches[mark] = batch.batch_id
    stored_operators.warn_in_first_batch(options)
