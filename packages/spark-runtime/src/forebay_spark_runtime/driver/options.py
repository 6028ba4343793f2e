"""The arguments of `keyed`, checked on the driver before anything runs."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs
from pyspark.sql.types import UserDefinedType

from forebay_engine.configuring import resolve_with_plugins
from forebay_engine.execution.arguments import (
    ERROR_COLUMN,
    checked_flag,
    checked_lateness,
    checked_max_parallelism,
    checked_parallelism,
    checked_uid,
    event_time_missing_error,
    is_count,
)
from forebay_engine.execution.late_rows import PROCESS
from forebay_engine.versions import Checkpoint, RestoreFrom
from forebay_engine.versions.format.keyed_by import UNKNOWN, KeyedBy
from forebay_engine.versions.format.layout import escaped
from forebay_spark_runtime.driver import session as sessions
from forebay_spark_runtime.driver.parallelism import warn_of_parallelism
from forebay_state_api.codecs.field_names import spelled_otherwise
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.plugins import plugins
from forebay_state_api.settings import PREFIX, Settings
from forebay_state_api.storage import open_storage
from forebay_state_api.storage.urls import located


@attrs.frozen(kw_only=True)
class MarkSource:
    """An operator whose watermark another one follows."""

    uid: str
    keyed_uuid: str
    state_dir: str
    storage_options: Mapping[str, Any] = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class KeyedOptions:
    """The checked arguments of `keyed`, which are sent to the workers."""

    uid: str
    parallelism: int
    max_parallelism: int
    batch: sessions.MicroBatch
    """Query and batch, if the driver knows them; a stream's tasks know the others."""
    state_dir: str | None
    """The state directory, absolute; ``None`` if the state is dropped at the end."""
    order_by: tuple[str, ...]
    new_state: bool
    settings: Settings
    keyed_by: KeyedBy = UNKNOWN
    """The key columns of each keyed input."""
    restore: RestoreFrom | None = None
    """The stored state to begin with; ``None`` to begin with empty state."""
    event_time: str | None = None
    """The column of event times."""
    lateness_us: int = 0
    """The allowed lateness of rows, in µs."""
    late: str = PROCESS
    """The action for late rows."""
    emits_event_time: str | None = None
    """The output's column of event times, for which the watermark goes on; ``None`` if it does not.
    """
    marks: tuple[tuple[MarkSource, ...], ...] = ()
    """For each keyed input the operators whose watermark it has; none for its own event times."""
    idle_after_us: int | None = None
    """The silence after which an input does not hold the watermark; ``None`` without it."""
    max_ahead_us: int | None = None
    """How far event times may be ahead of the micro-batch's time; ``None`` without a bound."""
    error_limit: int | None = None
    """The failed records that a subtask accepts; ``None`` if each fails the micro-batch."""
    error_column: str = ERROR_COLUMN
    """The name of the column for errors."""
    fire_at_end: bool = False
    """Whether the end of the input fires all event-time timers."""
    ticks_ms: int | None = None
    """The period of ticks; ``None`` without ticks."""
    checkpoint: Checkpoint | None = None
    """The query's checkpoint in ``foreachBatch``; for a stream the session has it."""
    is_bounded: bool = False
    """Whether a bounded DataFrame is evaluated that is no micro-batch of a stream."""
    keyed_uuid: str = ""
    """A random id of each operator that is made."""
    driver: str = sessions.PROCESS_RUN
    """The id of the process that made the operator."""
    outages: bytes = attrs.field(default=b"", repr=False)
    """The handle by which tasks report outages of the compaction service: see `packed_reports`."""


def operator_options(
    df: Any,
    *,
    uid: object,
    parallelism: object,
    max_parallelism: object,
    query: Any,
    batch_id: Any,
    order_by: object,
    new_state: object,
    restore: RestoreFrom | None = None,
    overrides: Mapping[str, Any],
) -> KeyedOptions:
    """Check the arguments of an operator with state, on the driver.

    The arguments are documented at `keyed`. ``overrides`` are the settings that were passed as
    arguments, by their names; ``None`` stands for an omitted one. Raises `ConfigurationError`.
    """
    uid = checked_uid(uid)
    session = df.sparkSession
    given = sessions.configuration(session)
    sessions.refuse_speculation(session, given)
    sessions.warn_unless_workers_stay(session, given)
    settings = resolve_with_plugins(given, overrides=dict(overrides))
    plugins().backend(settings["state.backend"])
    plugins().compaction_service(settings["compaction.service"])
    most = checked_max_parallelism(max_parallelism, uid)
    if parallelism is None:
        parallelism = min(sessions.default_parallelism(session), most)
    batch = checked_batch(df, query, batch_id, uid)
    directory = checked_directory(df, settings, batch, uid)
    if restore is not None and directory is None:
        raise ConfigurationError(
            f"operator {uid!r}: restore_from= needs query=: without it the state of a bounded "
            "DataFrame is dropped at its end"
        )
    subtasks = checked_parallelism(parallelism, most, uid)
    warn_of_parallelism(subtasks, most, uid)
    return KeyedOptions(
        uid=uid,
        parallelism=subtasks,
        max_parallelism=most,
        batch=batch,
        state_dir=directory,
        order_by=checked_order(df, order_by, uid),
        new_state=checked_flag(new_state, "new_state", uid),
        restore=restore,
        settings=settings,
    )


def checked_dataframe(
    df: object, wanted: str = "keyed() takes a DataFrame of Spark first, then the key columns"
) -> None:
    """Raise `ConfigurationError` unless ``df`` is a DataFrame, of classic Spark or of Connect.

    ``wanted`` is the beginning of its message.
    """
    if not hasattr(type(df), "mapInArrow"):
        raise ConfigurationError(f"{wanted}, not {type(df).__name__} {reprlib.repr(df)}")


def checked_batch(df: Any, query: Any, batch_id: Any, uid: str) -> sessions.MicroBatch:
    """Return the micro-batch that ``query`` and ``batch_id`` name, completed by Spark's values.

    Raises `ConfigurationError` if they are invalid, missing, or not Spark's on this thread.
    """
    if query is not None and not (isinstance(query, str) and query):
        raise ConfigurationError(f"operator {uid!r}: query= is a name, not {query!r}")
    if query is not None:
        escaped(query, f"operator {uid!r}: query=")
    if batch_id is not None and not (is_count(batch_id) or batch_id == 0):
        raise ConfigurationError(f"operator {uid!r}: batch_id is a number from 0, not {batch_id!r}")
    given = sessions.MicroBatch(query=query, batch_id=batch_id)
    if df.isStreaming:
        if batch_id is not None:
            raise ConfigurationError(
                f"operator {uid!r}: Spark numbers the batches of a stream; leave batch_id out"
            )
        return given
    if sessions.in_connect_foreach_batch():
        return _complete(given, uid)
    return _agreed(given, sessions.current_batch(df.sparkSession), uid)


def _complete(given: sessions.MicroBatch, uid: str) -> sessions.MicroBatch:
    values = {"query": given.query, "batch_id": given.batch_id}
    missing = [f"{name}=" for name, value in values.items() if value is None]
    if missing:
        raise ConfigurationError(
            f"operator {uid!r}: Spark gives no query and batch id in foreachBatch under Spark "
            f"Connect; pass {' and '.join(missing)} to keyed(): a name of your own for the query, "
            "and the second argument of the foreachBatch function"
        )
    return attrs.evolve(given, run_id=sessions.PROCESS_RUN)


def _agreed(
    given: sessions.MicroBatch, spark: sessions.MicroBatch, uid: str
) -> sessions.MicroBatch:
    known = spark.batch_id
    if known is not None and given.batch_id not in (None, known):
        raise ConfigurationError(
            f"operator {uid!r}: this is batch {known}, and batch_id={given.batch_id} was passed; "
            "pass the second argument of the foreachBatch function, or leave it out"
        )
    batch_id = given.batch_id if known is None else known
    query = given.query or spark.query
    if query is None and batch_id is not None:
        raise ConfigurationError(
            f"operator {uid!r}: batch_id= numbers the batches of a query; pass query= with it"
        )
    return attrs.evolve(spark, query=query, batch_id=batch_id)


def checked_directory(
    df: Any, settings: Settings, batch: sessions.MicroBatch, uid: str
) -> str | None:
    """Return the state directory, absolute; ``None`` if the state is dropped at the end.

    Raises `ConfigurationError` if no directory is set or it cannot be used.
    """
    if not df.isStreaming and batch.query is None:
        return None
    directory = shared_directory(settings, uid)
    if not sessions.is_connect(df.sparkSession):
        # Nothing is read or written yet: this finds an invalid scheme, option or path.
        open_storage(directory, settings.storage_options())
    return directory


def shared_directory(settings: Settings, uid: str) -> str:
    """Return the state directory, absolute.

    Raises `ConfigurationError` if no directory is set, or if workers cannot share it.
    """
    directory = located(settings.required("state.dir", argument="state_dir"))
    if directory.lower().startswith("memory:"):
        raise ConfigurationError(
            f"operator {uid!r}: state in {directory} would be a process's own, and Spark's workers "
            "are many; name a directory or a URL that all of them reach"
        )
    return directory


def checked_event_time(
    df: Any, event_time: object, allowed_lateness: Any, uid: str
) -> tuple[str | None, int]:
    """Return the column of event times, and the allowed lateness in µs.

    Raises `ConfigurationError` if the column is missing or not of type timestamp, or if there is a
    lateness without event times.
    """
    if event_time is None:
        if allowed_lateness is not None:
            raise event_time_missing_error(uid)
        return None, 0
    schema = df.schema
    if not isinstance(event_time, str) or event_time not in schema.names:
        raise missing_column_error(event_time, "of event times", schema.names, uid)
    kind = schema[event_time].dataType.simpleString()
    if kind != "timestamp":
        raise ConfigurationError(
            f"operator {uid!r}: event times are a column of type timestamp, and {event_time!r} is "
            f"of type {kind}; cast it"
        )
    return event_time, checked_lateness(allowed_lateness, uid)


def missing_column_error(
    name: object, purpose: str, names: Sequence[str], uid: str
) -> ConfigurationError:
    """Return the error for a column that the input does not have; ``purpose`` follows its name."""
    advice = spelled_otherwise(name, names) if isinstance(name, str) else ""
    if isinstance(name, str) and name.partition(".")[0] in names:
        advice = (
            ". To use a field of a struct, make a column of it first: "
            f'.withColumn("{name.replace(".", "_")}", F.col("{name}"))'
        )
    return ConfigurationError(
        f"operator {uid!r}: there is no column {name!r} {purpose}; "
        f"the columns are {', '.join(names)}{advice}"
    )


_UNORDERED: Final = ("map", "struct", "array", "variant", "geometry", "geography")


def checked_order(df: Any, order_by: object, uid: str) -> tuple[str, ...]:
    """Return the columns that rows are sorted by.

    Raises `ConfigurationError` for a missing column and for a type that has no order.
    """
    names = _order_names(order_by, uid)
    schema = df.schema
    for name in names:
        if name not in schema.names:
            raise missing_column_error(name, "to order by", schema.names, uid)
        kind = schema[name].dataType.simpleString()
        if kind.startswith(_UNORDERED) or isinstance(schema[name].dataType, UserDefinedType):
            raise ConfigurationError(
                f"operator {uid!r}: column {name!r} of type {kind} cannot be ordered by"
            )
    return names


def _order_names(order_by: object, uid: str) -> tuple[str, ...]:
    if order_by is None:
        return ()
    names = (order_by,) if isinstance(order_by, str) else order_by
    if isinstance(names, Sequence) and all(isinstance(name, str) for name in names):
        return tuple(names)
    raise ConfigurationError(
        f"operator {uid!r}: order_by= is the name of a column, or a list of names, not "
        f"{order_by!r}; rows come in ascending order of each"
    )


def checked_end(fire_at_end: object, df: Any, options: KeyedOptions) -> bool:
    """Return whether the end of the input fires all event-time timers; ``None`` is the default.

    Raises `ConfigurationError` for anything else than a bool, and for a stream and its
    micro-batches in ``foreachBatch``, which are not its end.
    """
    if fire_at_end is None:
        return not df.isStreaming and options.state_dir is None
    if not isinstance(fire_at_end, bool):
        raise ConfigurationError(
            f"operator {options.uid!r}: fire_at_end is True or False, not {fire_at_end!r}"
        )
    if fire_at_end and df.isStreaming:
        raise ConfigurationError(
            f"operator {options.uid!r}: fire_at_end= is for bounded DataFrames; a stream has no "
            "end, also with trigger(availableNow=True): its next run goes on"
        )
    if fire_at_end and options.batch.run_id is not None:
        raise ConfigurationError(
            f"operator {options.uid!r}: fire_at_end= is for bounded DataFrames with state of their "
            "own; in foreachBatch the state is the stream's, which goes on in its next micro-batch"
        )
    return fire_at_end


def agreeing(first: KeyedOptions, second: KeyedOptions) -> None:
    """Raise `ConfigurationError` if two connected inputs have different arguments."""
    for field in (
        "uid",
        "parallelism",
        "max_parallelism",
        "batch",
        "state_dir",
        "new_state",
        "restore",
        "late",
        "emits_event_time",
        "error_limit",
        "error_column",
        "fire_at_end",
        "ticks_ms",
        "idle_after_us",
        "max_ahead_us",
    ):
        _agree(field, getattr(first, field), getattr(second, field))
    _agree("event_time=, given or not,", first.event_time is None, second.event_time is None)
    _agree("the number of order_by columns", len(first.order_by), len(second.order_by))
    shown = [{row.key: row.value for row in one.settings.explain()} for one in (first, second)]
    for name in sorted({*first.settings, *second.settings}):
        if first.settings.get(name) != second.settings.get(name):
            # As `forebay config` shows them: one may be a secret.
            raise _disagreement_error(name, *(one.get(PREFIX + name) for one in shown))


def _agree(what: str, ours: object, theirs: object) -> None:
    if ours != theirs:
        raise _disagreement_error(what, ours, theirs)


def _disagreement_error(what: str, ours: object, theirs: object) -> ConfigurationError:
    return ConfigurationError(
        f"connected inputs are one operator: {what} is {ours!r} on the first and {theirs!r} on the "
        "second keyed()"
    )
