"""`FunctionHarness`: runs a keyed function micro-batch by micro-batch, as Spark would.

Each `FunctionHarness.process` is one micro-batch: rows go to their subtasks by key group, each
subtask works on a fresh copy of the function, and all commit. Restarts, other parallelism and older
versions go through the same protocol as on Spark.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

from pyspark import cloudpickle

from forebay_spark_runtime.options import (
    checked_lateness,
    checked_max_parallelism,
    checked_parallelism,
    checked_restore,
    checked_uid,
    no_event_time,
)
from forebay_spark_runtime.pickling import pickled_function
from forebay_spark_runtime.rows_out import check_awaited
from forebay_spark_runtime.testing.input_rows import (
    InputRows,
    KeyedRow,
    column_names,
    extractor,
)
from forebay_spark_runtime.testing.output_rows import OutputRows
from forebay_spark_runtime.testing.stored import Stored
from forebay_state_api._engine.engine import (
    EngineMetrics,
    function_name,
    record_methods,
    timer_method,
)
from forebay_state_api._operator_state.reading import OperatorDescriptor, read_operator_state
from forebay_state_api._restoring import default_options
from forebay_state_api.codecs import ValueCodec, codec_for
from forebay_state_api.descriptors import StateDescriptor
from forebay_state_api.errors import ConfigurationError, StateAccessError
from forebay_state_api.keys import subtask_of
from forebay_state_api.metrics import total
from forebay_state_api.plugins import plugins
from forebay_state_api.reading import read_state
from forebay_state_api.settings import (
    EngineSettings,
    Settings,
    options_from,
    resolve_settings,
)
from forebay_state_api.storage import open_storage
from forebay_state_api.subtask import Subtask, SubtaskIdentity
from forebay_state_api.testing.clock import ManualClock
from forebay_state_api.testing.late_backend import late_backend
from forebay_state_api.versions import (
    OperatorStorage,
    OperatorVersions,
    RestoreFrom,
    RunIdentity,
    operator_folder,
)
from forebay_state_api.versions.epochs import list_epochs
from forebay_state_api.versions.timeline import newest_complete

QUERY: Final = "harness"
"""The query id under which a harness keeps its state."""


class Clock(Protocol):
    """Where a harness takes the time of a micro-batch from."""

    @property
    def now_us(self) -> int:
        """The time in µs since 1970."""


class FunctionHarness:
    """A keyed function on a real backend, without Spark.

    :param fn: what ``keyed(...).process`` takes: a function class, of one or two inputs, or a
        callable ``fn(row, ctx)``; `MapFunction` and `FlatMapFunction` work as well.
    :param key_by: a column name, several, or a callable from a row to its key.
    :param schema: what ``process`` takes: rows given out are checked against it, and come as rows
        with its names, which another harness can take. Without it they come as the function made
        them.
    :param key_type: the type of keys, as descriptors take types; a tuple type for several columns.
        Keys of any type are taken if not given. State that a job on Spark stored has typed keys.
    :param state_dir: where state is kept; in memory if not given. A directory that holds state is
        opened at its newest version.
    :param query: the query id under which state is kept.
    :param restore_from: what the first version is made of, as ``keyed`` takes it; another harness
        on the same ``state_dir`` makes it.
    :param allow_non_restored: let ``restore_from`` leave states that the function does not declare.
    :param backend_options: settings of the backend, by their names without ``spark.forebay.`` and
        the backend's name.
    :param compaction: name of the compaction service, for a backend that compacts.
    :param clock: what micro-batches take their time from; a `ManualClock` if not given. All
        subtasks are told it, also those without rows. Operators in a chain share one.
    :param order_by: columns by which each subtask sorts the rows of a micro-batch before it runs
        them, those of both inputs together.
    :param event_time: a column name, or a callable from a row to its event time.
    :param allowed_lateness: how long the watermark stays behind the latest event time, as a
        timedelta or in seconds; nothing if not given.
    :param late_answers: a seed. Nothing is read ahead, and each read of a cell that the micro-batch
        has neither read nor written yet is answered late, in an order that the seed decides:
        records of several keys overlap, and callbacks run when they would on slow storage. One
        seed always gives the same run.

    The other arguments are the settings of the same names; see ``forebay config``. Raises
    `ConfigurationError` for whatever cannot work, as ``keyed`` does.
    """

    def __init__(
        self,
        fn: Any,
        key_by: str | Sequence[str] | Callable[[Any], Any],
        *,
        schema: Any = None,
        key_type: Any = None,
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
        order_by: str | Sequence[str] | None = None,
        event_time: str | Callable[[Any], datetime] | None = None,
        allowed_lateness: timedelta | float | None = None,
        in_flight_limit: int | None = None,
        batch_size: int | None = None,
        page_size: int | None = None,
        read_ahead: bool | None = None,
        drain_timeout: float | str | None = None,
        late_answers: int | None = None,
    ) -> None:
        self.clock: Any = clock or ManualClock()
        self._uid = checked_uid(uid)
        self._schema = schema
        self._key_codec = codec_for(key_type, what=f"key of operator {uid!r}")
        self._rows = _input_rows(
            self._uid,
            key_by,
            self._key_codec,
            event_time=event_time,
            order_by=order_by,
            max_parallelism=max_parallelism,
        )
        self._lateness_us = _lateness_us(event_time, allowed_lateness, self._uid)
        self._backend = plugins().backend(backend)
        if late_answers is not None:
            self._backend = late_backend(self._backend, late_answers)
            batch_size, read_ahead = 1, False
        settings = _settings(
            self._backend,
            backend_options or {},
            {
                "in-flight-limit": in_flight_limit,
                "batch-size": batch_size,
                "page-size": page_size,
                "read-ahead": read_ahead,
                "drain-timeout": drain_timeout,
            },
        )
        self._options = settings.backend_options()
        self._max_parallelism = max_parallelism
        self._settings = options_from(EngineSettings, settings)
        directory = f"memory://forebay-harness-{uuid.uuid4()}" if state_dir is None else state_dir
        root = open_storage(directory)
        self._operator = operator_folder(query, uid)
        self._storage = OperatorStorage(root, self._operator)
        self._restore = checked_restore(
            restore_from, allow_non_restored=allow_non_restored, uid=uid
        )
        self._attempts = 0
        self._closed = False
        self._metrics: list[EngineMetrics] = []
        self.version = 0 if state_dir is None else self._newest()
        """The version that the next micro-batch starts from: as many batches were made."""
        self._configure(fn, parallelism)
        if self.version:
            self._stored().check_key(self._key_codec)
        self._compaction = plugins().compaction_service(compaction).open(root, {})

    # -- running ------------------------------------------------------------------------------

    def process(self, rows: Iterable[Any], other: Iterable[Any] | None = None) -> list[Any]:
        """Run one micro-batch and commit it; the rows given out, subtask by subtask.

        Rows are NamedTuples, ``Row``s or dicts; the function gets their datetimes in UTC, as on
        Spark. ``other`` are those of the second input, which come
        after those of the first; without it the second input has none in this micro-batch. A
        failure raises `FunctionError` with the user's error as its cause, and commits nothing; so
        does what cannot be a key, which is a `ConfigurationError`.
        """
        if self._closed:
            message = "the harness is closed"
            raise StateAccessError(message)
        if other is not None and self._inputs == 1:
            message = "the function has one input; rows of a second one cannot be processed"
            raise ConfigurationError(message)
        if self.version == 0 and self._restore is not None:
            self._stored().check_key(self._key_codec)
        records = self._rows.keyed(rows, 0)
        records += self._rows.keyed(() if other is None else other, 1)
        out: list[Any] = []
        self._metrics = []
        for subtask, mine in enumerate(self._routed(records)):
            out += self._run(subtask, mine)
        self.version += 1
        return out

    def restart(
        self,
        function: Any = None,
        parallelism: int | None = None,
        version: int | None = None,
    ) -> Self:
        """Go on as a new run would: from the newest version, or from an older one.

        ``function`` and ``parallelism`` stay as they are if not given. Returns the harness.
        """
        if version is not None:
            if not 0 <= version <= self.version:
                message = f"version {version} was not made yet; the newest one is {self.version}"
                raise ConfigurationError(message)
            self.version = version
        fn = cloudpickle.loads(self._pickled) if function is None else function
        self._configure(fn, self._parallelism if parallelism is None else parallelism)
        return self

    def close(self) -> None:
        """End the harness; what is in ``state_dir`` stays."""
        self._closed = True
        self._compaction.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -- looking ------------------------------------------------------------------------------

    def state(self, descriptor: StateDescriptor, key: Any, namespace: Any = None) -> Any:
        """The committed value, list or dict of a state under ``key``, at the current version.

        What is not set reads as it does in the function, before the first micro-batch as well: a
        value as its default, a list or a map as an empty one, anything else as ``None``. With
        ``restore_from``, the version before the first micro-batch is the one that it names.
        """
        stored = self._stored()
        stored.check_key(self._key_codec)
        backend, options = self._backend, self._options
        if self.version == 0 and stored.version != 0:
            with stored.opened() as reader:
                name = reader.manifests[0].backend
            if name != backend.name:
                backend = plugins().backend(name)
                options = default_options(backend)
        return read_state(
            stored.storage,
            descriptor,
            key,
            backend=backend,
            options=options,
            key_codec=self._key_codec,
            max_parallelism=self._max_parallelism,
            now_us=self.clock.now_us,
            namespace=namespace,
            **stored.where(),
        )

    def operator_state(self, descriptor: OperatorDescriptor | None = None) -> list[Any]:
        """What each subtask has committed of an operator state, at the current version.

        A list for each subtask, or a dict if the state is broadcast; without a descriptor that of
        a `ListCheckpointed`. Empty before the first micro-batch, without ``restore_from``.
        """
        stored = self._stored()
        if stored.version == 0:
            return []
        return read_operator_state(stored.storage, descriptor, **stored.where())

    @property
    def metrics(self) -> EngineMetrics:
        """The engine's metrics of the last micro-batch, all subtasks together."""
        if not self._metrics:
            message = "metrics are those of the last micro-batch; none has run yet"
            raise ConfigurationError(message)
        return total(EngineMetrics, self._metrics)

    # -- parts --------------------------------------------------------------------------------

    def _configure(self, fn: Any, parallelism: int) -> None:
        checked_parallelism(None, parallelism, self._max_parallelism, self._uid)
        if isinstance(fn, type):
            message = f"the harness takes a function, not {fn!r}; pass an instance, not the class"
            raise ConfigurationError(message)
        self._inputs = len(record_methods(fn))
        if self._rows.event_time_of is not None and timer_method(fn) is None:
            message = f"event_time= is for functions with timers; {fn!r} has no on_timer method"
            raise ConfigurationError(message)
        self._pickled = pickled_function(fn, self._uid)
        self._function_name = function_name(fn)
        self._output = (
            None
            if self._schema is None
            else OutputRows(self._schema, function=self._function_name, uid=self._uid)
        )
        self._parallelism = parallelism
        self._run_identity = RunIdentity(keyed_uuid=str(uuid.uuid4()), app_id=None, run_id=None)

    def _newest(self) -> int:
        """The newest version of the directory; 0 also where no micro-batch has succeeded yet."""
        newest = newest_complete(self._storage, list_epochs(self._storage))
        return 0 if newest is None else newest.version

    def _stored(self) -> Stored:
        """What the next micro-batch begins with."""
        if self.version == 0 and self._restore is not None:
            return Stored.source_of(self._storage, self._restore, self._uid)
        return Stored(storage=self._storage, uid=self._uid, version=self.version)

    def _run(self, number: int, records: list[KeyedRow]) -> list[Any]:
        rows = self._rows.ordered(records)
        with self._subtask(number) as subtask:
            for side in range(self._inputs):
                at_us = self._rows.event_time_us(one for one in rows if one.side == side)
                if at_us is not None:
                    subtask.saw_event_time(at_us, side)
            for side, some in itertools.groupby(rows, key=lambda one: one.side):
                part = list(some)
                keys, groups = [one.key for one in part], [one.group for one in part]
                subtask.process([one.row for one in part], keys, groups, side)
            subtask.drain()
            out = subtask.take_rows()
            if self._output is not None:
                out = self._output.checked(out)
            check_awaited(out, self._function_name)
            self._metrics.append(subtask.commit().metrics)
        return out

    def _subtask(self, number: int) -> Subtask:
        self._attempts += 1
        identity = SubtaskIdentity(
            uid=self._uid,
            run=self._run_identity,
            batch_id=self.version,
            subtask=number,
            parallelism=self._parallelism,
            max_parallelism=self._max_parallelism,
            attempt_id=self._attempts,
        )
        versions = OperatorVersions(
            self._storage,
            uid=self._uid,
            max_parallelism=self._max_parallelism,
            backend_name=self._backend.name,
        )
        timed = self._rows.event_time_of is not None
        return Subtask(
            cloudpickle.loads(self._pickled),
            self._backend,
            identity,
            versions=versions,
            key_codec=self._key_codec,
            now_us=self.clock.now_us,
            settings=self._settings,
            backend_options=self._options,
            restore=self._restore,
            compaction=self._compaction,
            operator=self._operator,
            lateness_us=[self._lateness_us] * self._inputs if timed else None,
        )

    def _routed(self, records: list[KeyedRow]) -> list[list[KeyedRow]]:
        """The rows of each subtask."""
        routed: list[list[KeyedRow]] = [[] for _ in range(self._parallelism)]
        for one in records:
            routed[subtask_of(one.group, self._parallelism, self._max_parallelism)].append(one)
        return routed


def _input_rows(
    uid: str,
    key_by: Any,
    key_codec: ValueCodec,
    *,
    event_time: Any,
    order_by: Any,
    max_parallelism: int,
) -> InputRows:
    """How rows are read, as the arguments say."""
    event_time_of = None
    if event_time is not None:
        event_time_of = extractor(event_time, "event_time=", "of event times", uid)
    return InputRows(
        uid=uid,
        max_parallelism=checked_max_parallelism(max_parallelism, uid),
        key_codec=key_codec,
        key_of=extractor(key_by, "key_by", "to key by", uid),
        event_time_of=event_time_of,
        order_by=() if order_by is None else column_names(order_by, "order_by=", uid),
    )


def _lateness_us(event_time: Any, allowed_lateness: Any, uid: str) -> int:
    if event_time is None and allowed_lateness is not None:
        raise no_event_time(uid)
    return checked_lateness(allowed_lateness, uid)


def _settings(backend: Any, options: Mapping[str, Any], given: Mapping[str, Any]) -> Settings:
    """What is given, checked as `keyed` does; ``options`` are those of the backend."""
    own = {f"{backend.name}.{name}": value for name, value in options.items()}
    overrides = {"state.backend": backend.name, **own, **given}
    return resolve_settings({}, overrides=overrides, backends={backend.name: backend})
