"""`FunctionHarness`: runs a keyed function micro-batch by micro-batch, as Spark would.

Each `FunctionHarness.process` is one micro-batch: rows go to their subtasks by key group, each
subtask works on a fresh copy of the function, and all commit. Restarts, other parallelism and older
versions go through the same protocol as on Spark.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import attrs
from pyspark import cloudpickle

from forebay_spark_runtime.options import (
    checked_max_parallelism,
    checked_parallelism,
    checked_uid,
)
from forebay_spark_runtime.pickling import pickled_function
from forebay_state_api._engine.engine import (
    EngineMetrics,
    EngineSettings,
    record_methods,
    timer_method,
)
from forebay_state_api._engine.timers import us_of
from forebay_state_api._operator_state.reading import OperatorDescriptor, read_operator_state
from forebay_state_api.codecs import codec_for
from forebay_state_api.descriptors import StateDescriptor
from forebay_state_api.errors import ConfigurationError, StateAccessError
from forebay_state_api.keys import canonical_key, key_group_of, subtask_of
from forebay_state_api.plugins import plugins
from forebay_state_api.reading import read_state
from forebay_state_api.settings import Settings, resolve_settings
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


_Keyed = tuple[Any, Any, int]
"""A row, its key and its key group."""


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
    :param state_dir: where state is kept; in memory if not given. A directory that holds state is
        opened at its newest version.
    :param query: the query id under which state is kept.
    :param restore_from: what the first version is made of, as ``keyed`` takes it; another harness
        on the same ``state_dir`` makes it.
    :param backend_options: settings of the backend, by their names without ``spark.forebay.`` and
        the backend's name.
    :param compaction: name of the compaction service, for a backend that compacts.
    :param clock: what micro-batches take their time from; a `ManualClock` if not given. All
        subtasks are told it, also those without rows.
    :param event_time: a column name, or a callable from a row to its event time.
    :param allowed_lateness: how long the watermark stays behind the latest event time.
    :param late_answers: a seed. Nothing is read ahead, and each read of a cell that the micro-batch
        has neither read nor written yet is answered late, in an order that the seed decides:
        records of several keys overlap, and callbacks run when they would on slow storage. One
        seed always gives the same run.
    """

    def __init__(
        self,
        fn: Any,
        key_by: str | Sequence[str] | Callable[[Any], Any],
        *,
        uid: str = "test",
        backend: str = "heap",
        backend_options: Mapping[str, Any] | None = None,
        compaction: str = "local",
        state_dir: str | Path | None = None,
        query: str = QUERY,
        restore_from: str | RestoreFrom | None = None,
        parallelism: int = 1,
        max_parallelism: int = 128,
        clock: Clock | None = None,
        event_time: str | Callable[[Any], datetime] | None = None,
        allowed_lateness: timedelta = timedelta(0),
        in_flight_limit: int = 6_000,
        batch_size: int = 1_000,
        read_ahead: bool = True,
        late_answers: int | None = None,
    ) -> None:
        self.clock: Any = clock or ManualClock()
        self._key_of = _key_extractor(key_by)
        self._event_time_of = None if event_time is None else _key_extractor(event_time)
        self._lateness_us = allowed_lateness // timedelta(microseconds=1)
        self._uid = checked_uid(uid)
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
                "read-ahead": read_ahead,
            },
        )
        self._options = settings.backend_options()
        self._max_parallelism = checked_max_parallelism(max_parallelism, uid)
        self._settings = EngineSettings(
            in_flight_limit=settings["in-flight-limit"],
            batch_size=settings["batch-size"],
            read_ahead=settings["read-ahead"],
        )
        directory = f"memory://forebay-harness-{uuid.uuid4()}" if state_dir is None else state_dir
        root = open_storage(directory)
        self._operator = operator_folder(query, uid)
        self._storage = OperatorStorage(root, self._operator)
        self._restore = RestoreFrom(restore_from) if isinstance(restore_from, str) else restore_from
        self._compaction = plugins().compaction_service(compaction).open(root, {})
        self._key_codec = codec_for(None, what=f"key of operator {uid!r}")
        self._attempts = 0
        self._closed = False
        self._metrics: list[EngineMetrics] = []
        self.version = 0 if state_dir is None else self._newest()
        """The version that the next micro-batch starts from: as many batches were made."""
        self._configure(fn, parallelism)

    # -- running ------------------------------------------------------------------------------

    def process(self, rows: Iterable[Any], other: Iterable[Any] | None = None) -> list[Any]:
        """Run one micro-batch and commit it; the rows given out, subtask by subtask.

        ``other`` are rows of the second input, which come after those of the first. A failure
        raises `FunctionError` with the user's error as its cause, and commits nothing; so does
        what cannot be a key, which is a `ConfigurationError`.
        """
        if self._closed:
            message = "the harness is closed"
            raise StateAccessError(message)
        if other is not None and self._inputs == 1:
            message = "the function has one input; rows of a second one cannot be processed"
            raise ConfigurationError(message)
        sides = [self._keyed(rows, "")]
        if self._inputs > 1:
            sides.append(self._keyed(() if other is None else other, " of the second input"))
        out: list[Any] = []
        self._metrics = []
        for subtask in range(self._parallelism):
            out += self._run(subtask, sides)
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
        value as its default, a list or a map as an empty one, anything else as ``None``.
        """
        return read_state(
            self._storage,
            descriptor,
            key,
            uid=self._uid,
            backend=self._backend,
            options=self._options,
            key_codec=self._key_codec,
            max_parallelism=self._max_parallelism,
            now_us=self.clock.now_us,
            namespace=namespace,
            version=self.version,
        )

    def operator_state(self, descriptor: OperatorDescriptor | None = None) -> list[Any]:
        """What each subtask has committed of an operator state, at the current version.

        A list for each subtask, or a dict if the state is broadcast; without a descriptor that of
        a `ListCheckpointed`. Empty before the first micro-batch.
        """
        if self.version == 0:
            return []
        return read_operator_state(self._storage, descriptor, uid=self._uid, version=self.version)

    @property
    def metrics(self) -> EngineMetrics:
        """The engine's metrics of the last micro-batch, all subtasks together."""
        if not self._metrics:
            message = "metrics are those of the last micro-batch; none has run yet"
            raise ConfigurationError(message)
        columns = zip(*[attrs.astuple(one) for one in self._metrics], strict=True)
        names = [field.name for field in attrs.fields(EngineMetrics)]
        total = EngineMetrics(**dict(zip(names, map(sum, columns), strict=True)))
        largest = max(one.largest_in_flight for one in self._metrics)
        return attrs.evolve(total, largest_in_flight=largest)

    # -- parts --------------------------------------------------------------------------------

    def _configure(self, fn: Any, parallelism: int) -> None:
        checked_parallelism(None, parallelism, self._max_parallelism, self._uid)
        self._inputs = len(record_methods(fn))
        if self._event_time_of is not None and timer_method(fn) is None:
            message = f"event_time= is for functions with timers; {fn!r} has no on_timer method"
            raise ConfigurationError(message)
        self._pickled = pickled_function(fn, self._uid)
        self._parallelism = parallelism
        self._run_identity = RunIdentity(keyed_uuid=str(uuid.uuid4()), app_id=None, run_id=None)

    def _newest(self) -> int:
        """The newest version of the directory; 0 also where no micro-batch has succeeded yet."""
        newest = newest_complete(self._storage, list_epochs(self._storage))
        return 0 if newest is None else newest.version

    def _run(self, number: int, sides: list[list[_Keyed]]) -> list[Any]:
        self._attempts += 1
        subtask = Subtask(
            cloudpickle.loads(self._pickled),
            self._backend,
            SubtaskIdentity(
                uid=self._uid,
                run=self._run_identity,
                batch_id=self.version,
                subtask=number,
                parallelism=self._parallelism,
                max_parallelism=self._max_parallelism,
                attempt_id=self._attempts,
            ),
            versions=OperatorVersions(
                self._storage,
                uid=self._uid,
                max_parallelism=self._max_parallelism,
                backend_name=self._backend.name,
            ),
            key_codec=self._key_codec,
            now_us=self.clock.now_us,
            settings=self._settings,
            backend_options=self._options,
            restore=self._restore,
            compaction=self._compaction,
            operator=self._operator,
            lateness_us=None if self._event_time_of is None else [self._lateness_us] * self._inputs,
        )
        with subtask:
            for side, records in enumerate(sides):
                rows, keys, groups = self._routed(records, number)
                self._see_event_times(rows, subtask, side)
                subtask.process(rows, keys, groups, side)
            subtask.drain()
            out = subtask.take_rows()
            self._metrics.append(subtask.commit().metrics)
        return out

    def _see_event_times(self, rows: list[Any], subtask: Subtask, side: int) -> None:
        if self._event_time_of is not None:
            for at in filter(None, map(self._event_time_of, rows)):
                subtask.saw_event_time(us_of(at), side)

    def _keyed(self, rows: Iterable[Any], side: str) -> list[_Keyed]:
        """All rows of one input, with their keys and key groups; ``side`` is for messages."""
        keyed = []
        for position, row in enumerate(rows):
            key = canonical_key(self._key_of(row))
            try:
                group = key_group_of(key, self._max_parallelism)
            except (ValueError, TypeError) as error:
                message = (
                    f"operator {self._uid!r}: {error}, in record {position}{side} of the "
                    f"micro-batch: {row!r:.300}. Filter such rows, or give them a key"
                )
                raise ConfigurationError(message) from error
            keyed.append((row, key, group))
        return keyed

    def _routed(self, records: list[_Keyed], number: int) -> tuple[list[Any], list[Any], list[int]]:
        """Rows, keys and key groups of one subtask."""
        chosen: tuple[list[Any], list[Any], list[int]] = ([], [], [])
        for record in records:
            if subtask_of(record[2], self._parallelism, self._max_parallelism) == number:
                for part, value in zip(chosen, record, strict=True):
                    part.append(value)
        return chosen


def _key_extractor(key_by: str | Sequence[str] | Callable[[Any], Any]) -> Callable[[Any], Any]:
    if callable(key_by):
        return key_by
    if isinstance(key_by, str):
        return lambda row: getattr(row, key_by)
    names = tuple(key_by)
    return lambda row: tuple(getattr(row, name) for name in names)


def _settings(backend: Any, options: Mapping[str, Any], given: Mapping[str, Any]) -> Settings:
    """What is given, checked as `keyed` does; ``options`` are those of the backend."""
    own = {f"{backend.name}.{name}": value for name, value in options.items()}
    overrides = {"state.backend": backend.name, **own, **given}
    return resolve_settings({}, overrides=overrides, backends={backend.name: backend})
