"""`keyed`: from a DataFrame to a stateful operator on it.

The result of ``.process`` and its like is an ordinary DataFrame, streaming if the input streams:
any source, sink and trigger, append mode. Everything that can be wrong about the arguments and the
settings is an error here, on the driver, before anything runs.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import attrs
from pyspark import cloudpickle

from forebay_spark_runtime import session as sessions
from forebay_spark_runtime.key_columns import KeyColumns, key_columns
from forebay_spark_runtime.plan import Input, output_schema, plan
from forebay_spark_runtime.worker import SubtaskJob
from forebay_state_api._engine.engine import (
    EngineSettings,
    flat_map_callable,
    function_name,
    map_callable,
    record_methods,
)
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.functions import (
    FlatMapFunction,
    Function,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    ReduceFunction,
)
from forebay_state_api.plugins import plugins
from forebay_state_api.settings import Settings, resolve_settings

MAX_PARALLELISM: Final = 32_768

_seen_in_batches: set[tuple[str, str, str]] = set()
"""(run, batch id, uid) of the operators made in ``foreachBatch`` calls of this process."""


@attrs.frozen(kw_only=True)
class KeyedOptions:
    """What `keyed` was told, checked."""

    uid: str
    parallelism: int
    max_parallelism: int
    query: str | None
    batch_id: int | None
    state_dir: str | None
    order_by: tuple[str, ...]
    new_state: bool
    settings: Settings
    keyed_uuid: str = attrs.field(factory=lambda: str(uuid.uuid4()))

    def engine_settings(self) -> EngineSettings:
        """The engine's part of the settings."""
        return EngineSettings(
            in_flight_limit=self.settings["in-flight-limit"],
            batch_size=self.settings["batch-size"],
            page_size=self.settings["page-size"],
            read_ahead=self.settings["read-ahead"],
            drain_timeout_s=self.settings["drain-timeout"],
        )


@attrs.frozen
class KeyedDataFrame:
    """A DataFrame whose rows will be routed by key; made by `keyed`."""

    df: Any
    keys: KeyColumns
    options: KeyedOptions

    def process(self, fn: Any, schema: Any) -> Any:
        """Apply a `KeyedProcessFunction`, or a callable ``fn(row, ctx)`` that returns rows.

        ``schema`` is a DDL string or a ``StructType``. Returns a DataFrame.
        """
        if not isinstance(fn, KeyedProcessFunction) and (
            isinstance(fn, Function) or not callable(fn)
        ):
            raise _wrong_function("process", "a KeyedProcessFunction or fn(row, ctx)", fn)
        return _apply(self.options, [Input(self.df, self.keys)], fn, schema)

    def map(self, fn: Any, schema: Any) -> Any:
        """Apply a `MapFunction`, or a callable of one row that returns one row."""
        if not isinstance(fn, MapFunction):
            if isinstance(fn, Function) or not callable(fn):
                raise _wrong_function("map", "a MapFunction or fn(row)", fn)
            fn = map_callable(fn)
        return _apply(self.options, [Input(self.df, self.keys)], fn, schema)

    def flat_map(self, fn: Any, schema: Any) -> Any:
        """Apply a `FlatMapFunction`, or a callable of one row that returns or yields rows."""
        if not isinstance(fn, FlatMapFunction):
            if isinstance(fn, Function) or not callable(fn):
                raise _wrong_function("flat_map", "a FlatMapFunction or fn(row)", fn)
            fn = flat_map_callable(fn)
        return _apply(self.options, [Input(self.df, self.keys)], fn, schema)

    def reduce(self, fn: Any) -> Any:
        """Give out, for each row, the rows of its key so far reduced into one.

        ``fn`` is a `ReduceFunction` or a callable of two rows; it returns a row of the input's
        schema, which is also the schema of the result.
        """
        from forebay_spark_runtime.reduce import RunningReduce  # noqa: PLC0415 - a cycle otherwise

        if not isinstance(fn, ReduceFunction) and not callable(fn):
            raise _wrong_function("reduce", "a ReduceFunction or fn(row, row)", fn)
        schema = self.df.schema
        function = RunningReduce(fn, schema.simpleString())
        return _apply(self.options, [Input(self.df, self.keys)], function, schema)

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
        inputs = [Input(one.df, one.keys) for one in (self.first, self.second)]
        return _apply(self.first.options, inputs, fn, schema)


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
    new_state: bool = False,
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
    :param state_dir: directory or URL below which state lives (``spark.forebay.state.dir``).
    :param backend: name of the state backend (``spark.forebay.state.backend``).
    :param order_by: columns by which each subtask sorts the rows of a batch before it runs them; a
        total order makes the order of rows repeatable where several source splits meet.
    :param new_state: begin with empty state although the query is past its first batch.

    The other arguments are the settings of the same names; see ``forebay config``. Raises
    `ConfigurationError` for whatever cannot work.
    """
    uid = _checked_uid(uid)
    session = df.sparkSession
    given = sessions.configuration(session)
    sessions.refuse_speculation(session, given)
    settings = resolve_settings(
        given,
        overrides={
            "state.dir": None if state_dir is None else str(state_dir),
            "state.backend": backend,
            "in-flight-limit": in_flight_limit,
            "batch-size": batch_size,
            "page-size": page_size,
            "read-ahead": read_ahead,
            "drain-timeout": drain_timeout,
        },
        backends={**plugins().backends(), **plugins().compaction_services()},
    )
    plugins().backend(settings["state.backend"])
    keys = key_columns(df.schema, columns, uid)
    if not _is_count(max_parallelism) or max_parallelism > MAX_PARALLELISM:
        message = f"operator {uid!r}: max_parallelism is 1 … {MAX_PARALLELISM}, not {max_parallelism!r}"
        raise ConfigurationError(message)
    options = KeyedOptions(
        uid=uid,
        parallelism=_checked_parallelism(session, given, parallelism, max_parallelism, uid),
        max_parallelism=max_parallelism,
        query=_checked_query(query),
        batch_id=_checked_batch(batch_id, uid),
        state_dir=_checked_directory(df, settings, query),
        order_by=_checked_order(df, order_by, uid),
        new_state=new_state,
        settings=settings,
    )
    return KeyedDataFrame(df, keys, options)


def _checked_uid(uid: object) -> str:
    if not isinstance(uid, str) or not uid:
        message = (
            "keyed() needs uid=: a name that the operator's state is found under after a restart, "
            f"not {uid!r}"
        )
        raise ConfigurationError(message)
    return uid


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _checked_parallelism(
    session: Any,
    given: Mapping[str, str],
    parallelism: int | None,
    max_parallelism: int,
    uid: str,
) -> int:
    if parallelism is None:
        if sessions.is_connect(session):
            default = int(given.get("spark.default.parallelism") or given["spark.sql.shuffle.partitions"])
        else:
            default = session.sparkContext.defaultParallelism
        return min(default, max_parallelism)
    if not _is_count(parallelism):
        message = f"operator {uid!r}: parallelism is a positive number, not {parallelism!r}"
        raise ConfigurationError(message)
    if parallelism > max_parallelism:
        message = (
            f"operator {uid!r}: parallelism {parallelism} is above max_parallelism "
            f"{max_parallelism}; a subtask owns at least one key group. Lower parallelism (the "
            "number of key groups is fixed for the life of the state)"
        )
        raise ConfigurationError(message)
    return parallelism


def _checked_query(query: object) -> str | None:
    if query is None or (isinstance(query, str) and query):
        return query
    message = f"query= is a name, not {query!r}"
    raise ConfigurationError(message)


def _checked_batch(batch_id: object, uid: str) -> int | None:
    if batch_id is None or (isinstance(batch_id, int) and batch_id >= 0):
        return batch_id
    message = f"operator {uid!r}: batch_id is a number from 0, not {batch_id!r}"
    raise ConfigurationError(message)


def _checked_directory(df: Any, settings: Settings, query: str | None) -> str | None:
    """The state directory, absolute; ``None`` where the state is dropped at the end anyway."""
    session = df.sparkSession
    durable = (
        df.isStreaming
        or query is not None
        or sessions.in_connect_foreach_batch()
        or sessions.local_property(session, "streaming.sql.batchId") is not None
    )
    if not durable:
        return None
    directory: str = settings.required("state.dir", argument="state_dir")
    return directory if "://" in directory else str(Path(directory).expanduser().absolute())


def _checked_order(df: Any, order_by: str | Sequence[str] | None, uid: str) -> tuple[str, ...]:
    names = (order_by,) if isinstance(order_by, str) else tuple(order_by or ())
    for name in names:
        if name not in df.columns:
            message = (
                f"operator {uid!r}: there is no column {name!r} to order by; "
                f"the columns are {', '.join(df.columns)}"
            )
            raise ConfigurationError(message)
    return names


def _check_connected(first: KeyedDataFrame, second: KeyedDataFrame) -> None:
    if first.keys.kinds() != second.keys.kinds():
        message = (
            f"operator {first.options.uid!r}: connected inputs are keyed by columns of the same "
            f"kinds, in order; got {_spelled(first.keys)} and {_spelled(second.keys)}"
        )
        raise ConfigurationError(message)
    for name in ("uid", "parallelism", "max_parallelism", "query", "batch_id", "state_dir"):
        ours, theirs = getattr(first.options, name), getattr(second.options, name)
        if ours != theirs:
            message = (
                f"connected inputs are one operator: {name} is {ours!r} on the first and "
                f"{theirs!r} on the second keyed()"
            )
            raise ConfigurationError(message)
    if first.df.isStreaming != second.df.isStreaming:
        message = f"operator {first.options.uid!r}: connect two streams, or two bounded DataFrames"
        raise ConfigurationError(message)


def _spelled(keys: KeyColumns) -> str:
    return ", ".join(
        f"{name} {kind.simpleString()}" for name, kind in zip(keys.names, keys.types, strict=True)
    )


def _wrong_function(method: str, wanted: str, fn: object) -> ConfigurationError:
    message = f"{method} takes {wanted}, not {type(fn).__name__} {fn!r}"
    if isinstance(fn, type):
        message += "; pass an instance, not the class"
    return ConfigurationError(message)


def _apply(options: KeyedOptions, inputs: list[Input], fn: Any, schema: Any) -> Any:
    """The DataFrame that runs ``fn`` in its workers."""
    df = inputs[0].df
    record_methods(fn)
    _remember(df, options)
    target = output_schema(df.sparkSession, schema, options.uid)
    job = SubtaskJob(
        options=options,
        function=_pickled(fn, options.uid),
        function_name=function_name(fn),
        key_type=cloudpickle.dumps(inputs[0].keys.key_type()),
        widths=tuple(len(one.df.columns) for one in inputs),
        key_positions=tuple(df.columns.index(name) for name in inputs[0].keys.names),
        schema=target.arrow,
        time_zone=df.sparkSession.conf.get("spark.sql.session.timeZone"),
        streaming=df.isStreaming,
        connect_foreach_batch=sessions.in_connect_foreach_batch(),
    )
    routed = plan(inputs, options)
    return routed.mapInArrow(job, target.spark)


def _pickled(fn: Any, uid: str) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(fn)
    except (pickle.PicklingError, TypeError, AttributeError, RuntimeError) as error:
        message = (
            f"operator {uid!r}: {function_name(fn)} cannot be sent to the workers: {error}. Make "
            "what cannot be pickled (clients, locks, sessions) in open(), or keep it in a module"
        )
        raise ConfigurationError(message) from error
    return data


def _remember(df: Any, options: KeyedOptions) -> None:
    """In ``foreachBatch`` a second operator of one uid in one batch would undo the first one."""
    run, batch = None, options.batch_id
    if sessions.in_connect_foreach_batch():
        run = options.query
    else:
        run = sessions.local_property(df.sparkSession, "spark.jobGroup.id")
        seen = sessions.local_property(df.sparkSession, "streaming.sql.batchId")
        batch = int(seen) if batch is None and seen is not None else batch
        run = run if seen is not None else None
    if run is None or batch is None:
        return
    mark = (run, str(batch), options.uid)
    if mark in _seen_in_batches:
        message = (
            f"keyed() was called twice for operator {options.uid!r} in batch {batch}: the second "
            "one would start from the same version and undo the first. Give each a uid of its own "
            "(in a loop over tenants, say, the tenant's name in it)"
        )
        raise ConfigurationError(message)
    _seen_in_batches.add(mark)


__all__ = ["ConnectedDataFrame", "KeyedDataFrame", "KeyedOptions", "keyed"]
