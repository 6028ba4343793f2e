"""`FunctionHarness`: run a keyed function micro-batch by micro-batch, as Spark would.

Each `FunctionHarness.process` is one micro-batch: rows are routed to their subtasks by key group,
each subtask works on a fresh copy of the function, and all commit. Restarts, changes of parallelism
and older versions use the same protocol as on Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, Unpack, cast

from forebay_engine.execution.arguments import (
    ERROR_COLUMN,
    FAIL,
    check_event_time_used,
    checked_error_column,
    checked_error_limit,
    checked_idle_after,
    checked_key_alias,
    checked_late,
    checked_lateness,
    checked_max_ahead,
    checked_max_parallelism,
    checked_parallelism,
    checked_restore,
    checked_uid,
    event_time_missing_error,
)
from forebay_engine.execution.batch_functions import WHOLE, check_batch_function
from forebay_engine.execution.late_rows import PROCESS, LateRow
from forebay_engine.execution.pickling import naming_files, pickled_function, unpickled
from forebay_engine.execution.record_calls import CallTry
from forebay_engine.execution.record_methods import (
    broadcast_method,
    function_name,
    record_methods,
)
from forebay_engine.execution.rows import check_rows
from forebay_engine.execution.subtask import Subtask
from forebay_engine.isolation.checked_rows import CheckedRows
from forebay_engine.isolation.failed_record import ErrorRows, FailedRecord
from forebay_engine.timers.instants import timer_us
from forebay_engine.versions import OperatorStorage, RestoreFrom
from forebay_engine.versions.choosing.timeline import newest_complete
from forebay_engine.versions.format.epochs import list_epochs
from forebay_state_api.contract.changes import ABSENT
from forebay_state_api.errors import ConfigurationError, StateAccessError
from forebay_state_api.job.descriptors import StateDescriptor
from forebay_state_api.job.functions import KeyedBatchFunction
from forebay_state_api.keys import canonical_key, key_group_of
from forebay_state_api.metrics import total
from forebay_state_api.metrics.engine import EngineMetrics
from forebay_state_api.plugins import plugins
from forebay_state_api.settings import EngineSettings, Settings, options_from, resolve_settings
from forebay_state_api.settings.engine_overrides import EngineOverrides, engine_overrides
from forebay_state_api.storage import open_storage
from forebay_testing.clock import set_for_tick
from forebay_testing.fake_clients import with_calls, with_clients
from forebay_testing.fresh_copies import fresh_copy
from forebay_testing.input_rows import InputRows, column_names, extractor
from forebay_testing.job import KeyedJob
from forebay_testing.keyed_row import KeyedRow
from forebay_testing.late_reads import late_backend
from forebay_testing.pending_writes import PendingWrites
from forebay_testing.stored import Stored
from forebay_testing.typed_reads import OperatorDescriptor, read_operator_state, read_state
from forebay_testing.virtual_clock import VirtualClock

if TYPE_CHECKING:
    from forebay_engine.columns.outputs import Output
    from forebay_testing.batches import Batches

QUERY: Final = "harness"
"""The query id under which a harness keeps its state."""
_INPUTS: Final = 2
"""The most inputs of a function."""
_A_YEAR_S: Final = 365 * 86_400.0
"""The time that a wait under a `VirtualClock` may take."""


class Clock(Protocol):
    """The source of a harness's micro-batch times."""

    @property
    def now_us(self) -> int:
        """The time in µs since 1970."""


class FunctionHarness:
    """A keyed function on a real backend, without Spark.

    :param fn: as for ``keyed(...).process``: a function class, with one or two inputs, the second
        one keyed or broadcast, or a callable ``fn(row, ctx)``; `MapFunction` and `FlatMapFunction`
        work as well.
    :param key_by: a column name, several, or a callable from a row to its key.
    :param schema: as for ``process``: emitted rows are checked against it, and returned as rows
        with its names, which another harness can take. Without it rows are returned as the function
        made them. Only for the harness of ``forebay_spark_runtime.testing``, which knows Spark's
        types.
    :param key_type: the type of keys, as in descriptors; a tuple type for several columns. Default:
        keys of any type. State that a job on Spark stored has typed keys.
    :param key_alias: as for ``keyed``: key column → its former name, under which state is stored.
    :param state_dir: the state directory; default: in memory. A directory that contains state is
        opened at its newest version.
    :param query: the query id under which state is stored.
    :param restore_from: the state that the first version begins with, as for ``keyed``; another
        harness on the same ``state_dir`` makes it.
    :param allow_non_restored: with ``restore_from``, accept stored states that the function does
        not declare; default: an error.
    :param backend_options: settings of the backend, by their names without ``spark.forebay.`` and
        the backend's name. Settings of another backend, which stored what ``restore_from`` names,
        keep its name: ``{"server.dsn": ...}``.
    :param compaction: name of the compaction service, for a backend that compacts.
    :param clock: the source of micro-batch times; default: a `ManualClock`. All subtasks get the
        time at which the micro-batch begins, even without rows. Operators in a chain should share
        one clock. With a `VirtualClock` the waits of asynchronous functions take no time, and the
        default of ``drain_timeout`` is a year.
    :param clients: for each name, what ``ctx.clients`` has instead of the client that the function
        declares: an object that answers, fails or waits as the test wants. It is not copied.
    :param on_call: an asynchronous function of a `CallTry` that makes each try of ``ctx.call``: it
        awaits ``call.make()``, before or after it fails or waits, or returns an answer of its own.
    :param order_by: columns by which each subtask sorts the rows of a micro-batch, of both inputs
        together, before it processes them.
    :param broadcast_order_by: columns by which the rows of a broadcast input are sorted, as
        ``broadcast(..., order_by=...)`` does.
    :param event_time: a column name, or a callable from a row to its event time.
    :param allowed_lateness: how far the watermark stays behind the latest event time, as a
        timedelta or in seconds, or a pair of them for the two inputs; default: 0.
    :param late: as for ``keyed``. With ``"column"`` a `LateRow` among the emitted rows describes a
        late row, and with ``schema`` a row whose last field is ``late``.
    :param emits_event_time: as for ``keyed``, with ``schema``: the next operator of a
        `HarnessChain` has the watermark of this one.
    :param idle_after: as for ``keyed``: the silence after which an input does not hold the
        watermark. It adds up the time that the clock has moved from micro-batch to micro-batch;
        `restart` begins another run.
    :param max_event_time_ahead: as for ``keyed``.
    :param late_answers: a seed. With it nothing is read ahead, and each read of a cell that the
        micro-batch has neither read nor written yet is answered late, in an order that depends on
        the seed: records of several keys overlap, and callbacks run as on slow storage. A seed
        always gives the same run.
    :param on_error: as for ``keyed``. With ``"column"`` a failed record becomes a `FailedRecord`
        among the emitted rows, and with ``schema`` a row whose last field is the error.
    :param error_column: the name of that field; default: ``"error"``.
    :param error_limit: as for ``keyed``.
    :param columns: whether ``fn`` runs as a batch function, on columns; default: whether it is a
        `KeyedBatchFunction` only. It needs pyarrow.
    :param cuts: a seed by which the rows of each subtask are cut into slices of a batch function.
        Each micro-batch also runs in one slice, without a commit: that its output is the same is
        checked. ``None`` makes no cuts. Default: 0.

    The other arguments are the settings of `EngineOverrides`. Raises
    `ConfigurationError` for invalid arguments, as ``keyed`` does.
    """

    def __init__(
        self,
        fn: Any,
        key_by: str | Sequence[str] | Callable[[Any], Any],
        *,
        schema: Any = None,
        key_type: Any = None,
        key_alias: Mapping[str, str] | None = None,
        uid: str = "test",
        backend: str = "heap",
        backend_options: Mapping[str, Any] | None = None,
        compaction: str = "local",
        state_dir: str | Path | None = None,
        query: str = QUERY,
        restore_from: str | RestoreFrom | None = None,
        allow_non_restored: bool = False,
        parallelism: int = 1,
        max_parallelism: int = 128,
        clock: Clock | None = None,
        clients: Mapping[str, Any] | None = None,
        on_call: Callable[[CallTry], Awaitable[Any]] | None = None,
        order_by: str | Sequence[str] | None = None,
        broadcast_order_by: str | Sequence[str] | None = None,
        event_time: str | Callable[[Any], datetime] | None = None,
        allowed_lateness: timedelta | float | Sequence[timedelta | float] | None = None,
        late: str = PROCESS,
        emits_event_time: str | None = None,
        idle_after: str | timedelta | None = None,
        max_event_time_ahead: str | timedelta | None = None,
        late_answers: int | None = None,
        on_error: str = FAIL,
        error_column: str = ERROR_COLUMN,
        error_limit: int | None = None,
        columns: bool | None = None,
        cuts: int | None = 0,
        **settings: Unpack[EngineOverrides],
    ) -> None:
        self._columns = columns
        self._cuts = cuts
        self._uid = uid = checked_uid(uid)
        _check_kind(uid, "backend_options=", backend_options, Mapping, "a dict of settings")
        _check_kind(uid, "clients=", clients, Mapping, "a dict of clients")
        _check_kind(uid, "on_call=", on_call, Callable, "an async function of a CallTry")
        _check_kind(uid, "late_answers=", late_answers, int, "a seed, a whole number")
        self._schema = schema
        self._fakes = clients
        self._on_call = on_call
        self._late = checked_late(late, event_time, uid)
        self.emits_event_time = _checked_emits(emits_event_time, event_time, schema, uid)
        self.mark_us: int | None = None
        """The watermark of the last micro-batch, in µs; ``None`` before the first one."""
        self._error_limit = checked_error_limit(on_error, error_limit, uid)
        self._error_column = checked_error_column(error_column, on_error, f"operator {uid!r}")
        if error_column != ERROR_COLUMN and schema is None:
            raise ConfigurationError(f"operator {uid!r}: error_column= goes with schema=")
        found = plugins().backend(backend)
        if late_answers is not None:
            found = late_backend(found, late_answers)
            settings |= {"batch_size": 1, "read_ahead": False}
        if settings.get("drain_timeout") is None and isinstance(clock, VirtualClock):
            settings["drain_timeout"] = _A_YEAR_S
        overrides = engine_overrides(settings, FunctionHarness)
        self._settings = _settings(found, backend_options or {}, overrides)
        directory = f"memory://forebay-harness-{uuid.uuid4()}" if state_dir is None else state_dir
        root = open_storage(directory)
        event_time_of = None
        if event_time is not None:
            event_time_of = extractor(event_time, "event_time=", "of event times", uid)
        self._job = KeyedJob(
            found,
            root,
            settings=options_from(EngineSettings, self._settings),
            options=self._settings.backend_options(),
            options_of=self._settings.options_of,
            max_parallelism=checked_max_parallelism(max_parallelism, uid),
            key_type=key_type,
            clock=cast("Any", clock),
            query=query,
            uid=uid,
            restore=checked_restore(restore_from, allow_non_restored=allow_non_restored, uid=uid),
            event_time=event_time_of,
            lateness=_lateness(event_time, allowed_lateness, uid),
            late=self._late,
            idle_after_us=checked_idle_after(idle_after, event_time, uid),
            max_ahead_us=checked_max_ahead(max_event_time_ahead, event_time, uid),
            fresh=self._fresh,
        )
        if not hasattr(self._job.clock, "now_us"):
            raise ConfigurationError(
                f"clock= takes a ManualClock, or another object with now_us, not {clock!r}"
            )
        self._storage = OperatorStorage(root, self._job.operator)
        key_names = () if callable(key_by) else column_names(key_by, "key_by", uid)
        self._rows = InputRows(
            uid=uid,
            key_names=key_names,
            key_alias=checked_key_alias(key_alias, key_names, uid),
            max_parallelism=max_parallelism,
            key_codec=self._job.key_codec,
            key_of=extractor(key_by, "key_by", "to key by", uid),
            event_time_of=event_time_of,
            order_by=_columns(order_by, "order_by=", uid),
            broadcast_order_by=_columns(broadcast_order_by, "broadcast_order_by=", uid),
        )
        self.clock: Any = self._job.clock
        self._closed = False
        self._pending = PendingWrites()
        self._configure(fn, parallelism)
        if state_dir is not None:
            self._job.batch_id = self._newest()
        if self.version:
            self._check_keys(self._stored())
        self._job.compaction = plugins().compaction_service(compaction).open(root, {})

    def _fresh(self, pickled: bytes) -> Any:
        """Return a subtask's copy of the function, with what the test puts into it."""
        function = with_clients(self._unpickled(pickled), self._fakes, self._uid)
        return with_calls(function, self._on_call, self._uid)

    # -- running ------------------------------------------------------------------------------

    def process(
        self, rows: Iterable[Any], other: Iterable[Any] | None = None, *, end: bool = False
    ) -> list[Any]:
        """Run one micro-batch and commit it; return the emitted rows, subtask by subtask.

        :param rows: NamedTuples, rows of Spark or dicts; the function gets their datetimes in UTC,
            as on Spark. For a batch function also columns, whose types then count: a table or batch
            of Arrow, a dict of lists, or a DataFrame of pandas or Polars.
        :param other: rows of the second input: of a keyed one, processed after ``rows``, or of a
            broadcast one, processed before them in every subtask; default: none.
        :param end: whether they are the last rows of a bounded DataFrame, after which all
            event-time timers fire; default: ``False``.

        A failure raises `FunctionError` with the user's error as its cause, an invalid key raises
        `ConfigurationError`; both commit nothing. Raises `StateAccessError` if the harness is
        closed.
        """
        return self._process(rows, other, end=end)

    def _process(
        self,
        rows: Iterable[Any],
        other: Iterable[Any] | None = None,
        *,
        end: bool = False,
        now_us: int | None = None,
        before: FunctionHarness | None = None,
    ) -> list[Any]:
        """Do as `process`; ``now_us`` is the micro-batch's time, by default the clock's.

        ``before`` is the operator whose watermark this one has.
        """
        self._check_open()
        if self._job.batches is not None:
            rows, other = self._as_columns(self._job.batches, rows, other)
        if other is not None and self._inputs == 1 and not self._has_broadcast:
            raise ConfigurationError(
                "the function has one input; rows of a second one are for a KeyedCoProcessFunction "
                "or a KeyedBroadcastProcessFunction"
            )
        if self.version == 0 and self._job.restore is not None:
            self._check_keys(self._stored())
        records = self._rows.keyed(rows, 0)
        second = () if other is None else other
        broadcast = self._rows.broadcast(second) if self._has_broadcast else []
        if not self._has_broadcast:
            records += self._rows.keyed(second, 1)

        def begun(running: Subtask) -> None:
            self._pending.begin(running)
            self._running, self.mark_us = running, running.mark_us
            if before is not None and self.has_event_time:
                running.follow(before.mark_us)

        ordered = self._rows.ordered(records)
        return self._run(ordered, begun, broadcast, end=end, now_us=now_us)

    def _as_columns(self, batches: Batches, rows: Any, other: Any) -> tuple[Any, Any]:
        """Return the rows of columns, or the rows given, after a look at their types."""
        from forebay_testing.batches import as_rows, as_table

        two = other is not None and not self._has_broadcast
        tables = [as_table(one, self._uid) for one in ([rows, other] if two else [rows])]
        self._job.inputs = max(self._job.inputs or 1, len(tables))
        batches.schemas = [table.schema for table in tables]
        found = [as_rows(table) for table in tables]
        return found[0], found[1] if two else other

    def tick(self, at: datetime) -> list[Any]:
        """Run a micro-batch without rows at a time; return the rows that due timers emit.

        :param at: the micro-batch's time, aware, not before the clock's; the clock stays there.

        It is a tick of ``keyed(..., ticks=)``: timers up to the time and the watermark fire, and
        values with a TTL expire. Raises `ConfigurationError` for another time, and for a
        ``clock`` that is not a `ManualClock`.
        """
        self._check_open()
        set_for_tick(self.clock, at)
        return self.process([])

    def advance_watermark(self, to: datetime) -> list[Any]:
        """Move the watermark to ``to``; return the rows that the due event-time timers emit.

        :param to: the new watermark, aware.

        Runs two micro-batches without rows: one in which all inputs have seen the event time
        ``to`` plus their lateness, and one in which timers fire. The watermark never goes back: for
        an earlier ``to`` only timers that are due anyway fire. Raises `ConfigurationError` without
        ``event_time``.
        """
        if self._job.event_time is None:
            raise ConfigurationError(
                "there is a watermark with event times only: pass event_time= to the harness"
            )
        if to.tzinfo is None:
            raise ConfigurationError(f"a watermark is a datetime with a time zone, not {to!r}")
        at_us = timer_us(to)

        def begun(running: Subtask) -> None:
            self._pending.begin(running)
            for side in range(self._inputs):
                running.saw_event_time(at_us + self._job.lateness_us[side], side)

        self._check_open()
        return self._run([], begun) + self.process([])

    def restart(
        self,
        function: Any = None,
        parallelism: int | None = None,
        version: int | None = None,
    ) -> Self:
        """Continue as a new run, from the newest version or from an older one; return the harness.

        ``function``, ``parallelism`` and ``version`` are the new run's; by default the function and
        the parallelism do not change.
        """
        if version is not None:
            self._pending.clear()
            if not 0 <= version <= self.version:
                raise ConfigurationError(
                    f"version {version} was not made yet; the newest one is {self.version}"
                )
            self._job.batch_id = version
        fn = self._unpickled(self._pickled) if function is None else function
        self._configure(fn, self._job.parallelism if parallelism is None else parallelism)
        return self

    def close(self) -> None:
        """Close the harness; ``state_dir`` keeps its state."""
        self._closed = True
        self._job.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- setting state ------------------------------------------------------------------------

    def set_state(
        self, descriptor: StateDescriptor, key: Any, content: Any, namespace: Any = None
    ) -> None:
        """Replace the content of a state under ``key``, as the function's own write would.

        :param descriptor: the descriptor that the function declares: of a value, list, map, sorted
            map or reducing state.
        :param key: the key.
        :param content: the value, a list, or a dict.
        :param namespace: the namespace; default: the default namespace.

        `state` returns it at once. The next micro-batch writes it before its first timer and
        record, and commits it; if that fails, the one after it does.
        """
        self._put(descriptor, key, namespace, content)

    def delete_state(self, descriptor: StateDescriptor, key: Any, namespace: Any = None) -> None:
        """Clear a state under ``key``, in the way and at the time of `set_state`.

        :param descriptor: the descriptor that the function declares, of any kind.
        :param key: the key.
        :param namespace: the namespace; default: the default namespace.
        """
        self._put(descriptor, key, namespace, ABSENT)

    # -- looking ------------------------------------------------------------------------------

    @property
    def has_event_time(self) -> bool:
        """Whether rows have event times, and so the function a watermark."""
        return self._job.event_time is not None

    @property
    def version(self) -> int:
        """The version from which the next micro-batch starts; equal to the number of batches."""
        return self._job.batch_id

    def state(self, descriptor: StateDescriptor, key: Any, namespace: Any = None) -> Any:
        """Return the committed value, list or dict of a state under ``key``, at this version.

        :param descriptor: the descriptor that the function declares.
        :param key: the key.
        :param namespace: the namespace; default: the default namespace.

        Unset state reads as in the function, also before the first micro-batch: a value as its
        default, a list or a map as empty, anything else as ``None``. With ``restore_from``, the
        version before the first micro-batch is the one that it names.
        """
        _check_descriptor(descriptor)
        place = canonical_key(self._job.key_codec.admit(key))
        return self._pending.content(
            descriptor, place, namespace, lambda: self._stored_state(descriptor, key, namespace)
        )

    def _stored_state(self, descriptor: StateDescriptor, key: Any, namespace: Any) -> Any:
        stored, job = self._stored(), self._job
        self._check_keys(stored)
        self._rows.check_alike(key)
        backend, options = job.backend_class, job.options
        if self.version == 0 and stored.version != 0:
            with stored.opened() as reader:
                name = reader.manifests[0].backend
            if name != backend.name:
                backend, options = plugins().backend(name), self._settings.options_of(name)
        return read_state(
            stored.storage,
            descriptor,
            key,
            backend=backend,
            options=options,
            key_codec=job.key_codec,
            max_parallelism=job.max_parallelism,
            now_us=self.clock.now_us,
            namespace=namespace,
            **stored.where(),
        )

    def operator_state(self, descriptor: OperatorDescriptor | None = None) -> list[Any]:
        """Return each subtask's committed part of an operator state, at the current version.

        The parts are lists, or dicts if the state is broadcast; without a descriptor, the state of
        a `ListCheckpointed`. Empty before the first micro-batch, unless ``restore_from`` is given.
        """
        stored = self._stored()
        if stored.version == 0:
            return []
        return read_operator_state(stored.storage, descriptor, **stored.where())

    @property
    def metrics(self) -> EngineMetrics:
        """The engine's metrics of the last committed micro-batch, for all subtasks together."""
        found = [report.metrics for report in self._job.reports]
        if not found:
            raise ConfigurationError("there are no metrics: no micro-batch has run yet")
        return total(EngineMetrics, found)

    # -- parts --------------------------------------------------------------------------------

    def _check_keys(self, stored: Stored) -> None:
        stored.check_keys(self._job.key_codec, self._rows.keyed_by(self._inputs))

    def _check_open(self) -> None:
        if self._closed:
            raise StateAccessError("the harness is closed")

    def _run(
        self,
        records: Sequence[KeyedRow],
        begun: Callable[[Subtask], None],
        broadcast: Sequence[Any] = (),
        *,
        end: bool = False,
        now_us: int | None = None,
    ) -> list[Any]:
        self._job.keyed_by = self._rows.keyed_by(self._inputs)
        out = self._job.process(
            self._pickled,
            records,
            broadcast=broadcast,
            given_out=self._given_out,
            begun=begun,
            end=end,
            now_us=now_us,
        )
        self._pending.clear()
        return out

    def _put(self, descriptor: StateDescriptor, key: Any, namespace: Any, content: Any) -> None:
        self._check_open()
        _check_descriptor(descriptor)
        self._rows.written(key)
        place = canonical_key(self._job.key_codec.admit(key))
        group = key_group_of(place, self._job.max_parallelism)
        self._pending.put(descriptor, place, group, namespace, content)

    def _configure(self, fn: Any, parallelism: int) -> None:
        checked_parallelism(parallelism, self._job.max_parallelism, self._uid)
        if isinstance(fn, type):
            raise ConfigurationError(
                f"the harness takes a function, not {fn!r}; pass an instance, not the class"
            )
        by_columns = self._by_columns(fn)
        self._has_broadcast = broadcast_method(fn) is not None
        two = by_columns and not self._has_broadcast
        self._inputs = _INPUTS if two else len(record_methods(fn)) or 1
        if self._job.event_time is not None:
            emits = self.emits_event_time is not None
            check_event_time_used(fn, self._late, self._uid, emits=emits)
        self._pickled = self._pickle(fn)
        self._function_name = function_name(fn)
        self._check: Callable[[list[Any]], list[Any]]
        self._check = list if self._schema is None else self._schema_check(self._schema)
        if self._error_limit is not None:
            checked_rows = partial(CheckedRows, self._admit)
            self._job.error_rows = ErrorRows(self._error_limit, checked_rows)
        self._job.batches = self._batches(fn) if by_columns else None
        self._job.restart(parallelism=parallelism, same_process=True)

    def _by_columns(self, fn: Any) -> bool:
        if self._columns is not None:
            return self._columns
        return isinstance(fn, KeyedBatchFunction) and not record_methods(fn)

    def _batches(self, fn: Any) -> Batches:
        """Return what feeds a batch function."""
        from forebay_testing.batches import Batches  # needs pyarrow

        check_batch_function(fn)
        names = self._rows.key_names
        return Batches(self._batch_output(), names, self._cuts, whole=fn.slices == WHOLE)

    def _batch_output(self) -> Output:
        """Return what makes the output of a batch function."""
        from forebay_engine.columns.outputs import Output

        return Output(None, self._function_name)

    def _pickle(self, fn: Any) -> bytes:
        """Pickle ``fn`` as for sending it to the workers."""
        import cloudpickle

        return pickled_function(fn, self._uid, naming_files(cloudpickle))

    def _unpickled(self, pickled: bytes) -> Any:
        what = f"operator {self._uid!r}: {self._function_name}"
        return unpickled(pickled, what, fresh_copy)

    def _schema_check(self, schema: Any) -> Callable[[list[Any]], list[Any]]:
        """Return a function that checks emitted rows and applies the schema's names and types."""
        raise ConfigurationError(
            f"schema={schema!r:.300} is checked with the types of Spark: import FunctionHarness "
            "from forebay_spark_runtime.testing (pip install 'forebay-spark-runtime[testing]')"
        )

    def _admit(self, row: Any) -> None:
        """Raise `OutputSchemaError` if an emitted row does not fit."""
        check_rows([row], self._function_name)

    def _given_out(self, rows: list[Any]) -> list[Any]:
        rows = self._check(rows)
        if self.emits_event_time is not None:
            times = [getattr(row, self.emits_event_time) for row in rows]
            before_us = self._running.watermark_before_us
            late = sum(at is not None and timer_us(at) <= before_us for at in times)
            self._running.emitted_late(late)
        own = [row for row in rows if not isinstance(row, (FailedRecord, LateRow))]
        check_rows(own, self._function_name)
        return rows

    def _newest(self) -> int:
        """Return the newest version in the directory; 0 if no micro-batch has succeeded yet."""
        newest = newest_complete(self._storage, list_epochs(self._storage))
        return 0 if newest is None else newest.version

    def _stored(self) -> Stored:
        """Return the stored version that the next micro-batch begins with."""
        if self.version == 0 and self._job.restore is not None:
            return Stored.source_of(self._storage, self._job.restore, self._uid)
        return Stored(storage=self._storage, uid=self._uid, version=self.version)


def _check_descriptor(descriptor: Any) -> None:
    if not isinstance(descriptor, StateDescriptor):
        raise ConfigurationError(
            "state takes the descriptor that the function declares, such as "
            f"ValueStateDescriptor('n', int), not {descriptor!r}"
        )


def _checked_emits(emits: str | None, event_time: Any, schema: Any, uid: str) -> str | None:
    if emits is not None and event_time is None:
        raise event_time_missing_error(uid, "emits_event_time=")
    if emits is not None and (schema is None or not isinstance(emits, str)):
        raise ConfigurationError(
            f"operator {uid!r}: emits_event_time= is the name of a column of schema=, not {emits!r}"
        )
    return emits


def _lateness(event_time: Any, allowed_lateness: Any, uid: str) -> list[timedelta]:
    """Return the lateness of each input."""
    if event_time is None and allowed_lateness is not None:
        raise event_time_missing_error(uid)
    is_pair = isinstance(allowed_lateness, list | tuple)
    if is_pair and len(allowed_lateness) != _INPUTS:
        raise ConfigurationError(
            f"operator {uid!r}: allowed_lateness is one for both inputs, or a pair, not "
            f"{allowed_lateness!r}"
        )
    pair = allowed_lateness if is_pair else [allowed_lateness] * _INPUTS
    return [timedelta(microseconds=checked_lateness(one, uid)) for one in pair]


def _check_kind(uid: str, name: str, given: Any, kind: Any, wanted: str) -> None:
    if given is not None and (not isinstance(given, kind) or isinstance(given, bool)):
        raise ConfigurationError(f"operator {uid!r}: {name} takes {wanted}, not {given!r:.200}")


def _columns(given: Any, what: str, uid: str) -> tuple[str, ...]:
    return () if given is None else column_names(given, what, uid)


def _settings(backend: Any, options: Mapping[str, Any], given: Mapping[str, Any]) -> Settings:
    """Check settings as `keyed` does; ``options`` without a backend's name are ``backend``'s."""
    known = {**plugins().backends(), backend.name: backend}
    others = {name for name in options if name.partition(".")[0] in known.keys() - {backend.name}}
    own = {n if n in others else f"{backend.name}.{n}": value for n, value in options.items()}
    overrides = {"state.backend": backend.name, **own, **given}
    return resolve_settings({}, overrides=overrides, backends=known)
