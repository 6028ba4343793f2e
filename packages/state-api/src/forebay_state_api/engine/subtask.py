"""One subtask of one micro-batch, from the beginning of its version to the manifest.

Everything that runs a keyed function goes through here: the Spark runtime, the harness of its
users' tests and the conformance kit. A subtask is used by one thread, and ends in one of two ways::

    with Subtask(function, HeapBackend, task, versions=versions, ...) as subtask:
        subtask.process(rows, keys, groups)     # any number of times
        rows = subtask.take_rows()              # at any time
        subtask.drain()                         # every record has ended
        last = subtask.take_rows()
        report = subtask.commit()               # snapshot_state; the version is durable

Leaving the block without `Subtask.commit`, by an exception or not, leaves no version behind: the
next attempt opens what this one opened. Without ``versions`` nothing is read or stored at all: the
state begins empty and ends with the subtask, as for a DataFrame that is bounded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import attrs
from obstore.store import MemoryStore

from forebay_state_api.contract.backend import Opening, StateBackend
from forebay_state_api.contract.files import CommittedState
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.engine.engine import Engine
from forebay_state_api.engine.identity import SubtaskIdentity, SubtaskReport
from forebay_state_api.engine.metrics import EngineMetrics
from forebay_state_api.engine.operator_state.operator_state import OperatorState
from forebay_state_api.engine.prefetch import Siblings
from forebay_state_api.engine.record_methods import timer_method
from forebay_state_api.engine.restore import check_matched, convert, default_options
from forebay_state_api.engine.timers.watermark import ALWAYS, Times, times_of
from forebay_state_api.errors import StateAccessError, StorageError
from forebay_state_api.job.context import RuntimeContext
from forebay_state_api.metrics import nonzero
from forebay_state_api.plugins import plugins
from forebay_state_api.settings import RETRY_BUDGET, EngineSettings
from forebay_state_api.storage.obstore import ObstoreStorage
from forebay_state_api.versions.layout import random_id
from forebay_state_api.versions.manifest import lineages_of
from forebay_state_api.versions.operator_state import Content

if TYPE_CHECKING:
    from forebay_state_api.codecs import ValueCodec
    from forebay_state_api.contract.compaction_service import CompactionService
    from forebay_state_api.engine.timers.service import EngineTimers
    from forebay_state_api.versions.forks import RestoreFrom
    from forebay_state_api.versions.operator import OperatorVersions, TaskVersion

_log = logging.getLogger(__name__)

DEFAULT_CACHE_BYTES: Final = 1 << 30
"""What backends of a process may keep between batches, unless the job says otherwise."""

DEFAULT_RETRY_BUDGET_S: Final[float] = RETRY_BUDGET.default_value()

TTL_US: Final = "ttl_us"
"""Among what a manifest tells people: state name → time to live in µs."""


class Subtask:
    """Runs a function over the rows of one subtask and micro-batch, and commits its state.

    ``function`` must be a fresh copy; ``now_us`` is the micro-batch's time, the same for every
    attempt. ``restore`` is what to begin with instead of nothing, ``find_backend`` finds the
    backend that stored it, among the installed ones if not given, and ``options_of`` the settings
    of that backend by its name, their defaults if not given. ``retry_budget_s`` is
    `Opening.retry_budget_s`. ``compaction`` runs the jobs of the operator whose folder is
    ``operator`` below the state directory; without it the backend submits none. ``lateness_us`` is
    how late the event times of each input may be, ``None`` where they have none. Entering the
    context begins the version, opens the backend and calls the function's ``open``; it raises what
    `OperatorVersions.begin` and `StateBackend.open` raise, and then has let go of everything.
    """

    def __init__(
        self,
        function: Any,
        backend_class: type[StateBackend],
        task: SubtaskIdentity,
        *,
        versions: OperatorVersions | None,
        key_codec: ValueCodec,
        now_us: int,
        settings: EngineSettings | None = None,
        backend_options: Mapping[str, Any] | None = None,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        new_state: bool = False,
        restore: RestoreFrom | None = None,
        find_backend: Callable[[str], type[StateBackend]] | None = None,
        options_of: Callable[[str], Mapping[str, Any]] | None = None,
        retry_budget_s: float = DEFAULT_RETRY_BUDGET_S,
        compaction: CompactionService | None = None,
        operator: str = "",
        lateness_us: Sequence[int] | None = None,
    ) -> None:
        self.task = task
        self._function = function
        self._backend_class = backend_class
        self._versions = versions
        self._key_codec = key_codec
        self._now_us = now_us
        self._settings = settings
        self._options = backend_options or {}
        self._cache_bytes = cache_bytes
        self._new_state = new_state
        self._restore = restore
        self._find_backend = find_backend or plugins().backend
        self._options_of = options_of
        self._retry_budget_s = retry_budget_s
        self._compaction = compaction
        self._operator = operator
        self._lateness_us = lateness_us
        self._seen_us: dict[int, int] = {}
        self._making: TaskVersion | None = None
        self._backend: StateBackend | None = None
        self._engine: Engine | None = None
        self._opening_s = 0.0
        self._report: SubtaskReport | None = None

    # -- life ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin the version, open it and call what the function has before its first record."""
        started = time.perf_counter()
        try:
            self._making = self._begin_version()
            self._backend = self._backend_class.open(self._opening())
            self._engine = self._make_engine(self._backend)
            self._engine.open()
            self._take_over()
        except BaseException as error:
            self._name_in(error)
            self.close(failed=True)
            raise
        self._log_undeclared()
        self._opening_s = time.perf_counter() - started

    def process(
        self, rows: Iterable[Any], keys: Sequence[Any], groups: Sequence[int], side: int = 0
    ) -> None:
        """Admit rows, in order, of input ``side`` (0, or 1 of a function of two inputs).

        ``keys`` and ``groups`` give each row's key and key group. A record that cannot end yet
        stays in flight when this returns.
        """
        self.engine.process(rows, keys, groups, side)

    def saw_event_time(self, at_us: int, side: int = 0) -> None:
        """A row of input ``side`` has this event time; of several rows the latest will do."""
        self._seen_us[side] = max(at_us, self._seen_us.get(side, at_us))

    def fire_timers(self) -> bool:
        """Fire some of the timers that were due when the micro-batch began; whether more may be.

        `process` and `drain` fire what is left: it need not be called, but lets rows be taken in
        between.
        """
        return self.engine.fire_timers()

    @property
    def rows_ready(self) -> int:
        """The number of rows that the next `take_rows` returns if nothing runs in between."""
        return len(self.engine.rows_out)

    def take_rows(self) -> list[Any]:
        """The rows given out since the last call, as the function made them."""
        return self.engine.take_rows()

    def drain(self) -> None:
        """Wait until every record has ended and every timer that is due has fired.

        `take_rows` then gives the last rows.
        """
        self.engine.drain()

    def commit(self) -> SubtaskReport:
        """Drain, call ``snapshot_state``, make the state durable, and make it the version.

        Call it once, before the last rows are handed on: when it raises, nothing was committed.
        """
        if self._report is not None:
            raise StateAccessError("this subtask has committed already")
        engine = self.engine
        engine.drain()
        started = time.perf_counter()
        engine.snapshot()
        engine.hand_over()
        engine.clean_up()
        times = None if engine.timers is None else self._times_after(engine.timers)
        try:
            committed, manifest_id = self._commit_version(engine, times)
        except StorageError as error:
            self._name_in(error)
            raise
        self._report = self._reported(committed, manifest_id, time.perf_counter() - started)
        return self._report

    def siblings(self) -> Siblings | None:
        """What the process keeps of other subtasks, after `commit`; ``None`` without versions."""
        if self._versions is None:
            return None
        version, run_key = self.task.batch_id + 1, self.task.run.key
        return Siblings(self._backend_class, self._opening(), version, run_key)

    def close(self, *, failed: bool = False) -> None:
        """Close function, engine and backend; what was not committed is lost. Safe to call twice.

        With ``failed``, what ``close`` of the function raises is dropped in favour of the failure.
        """
        engine, self._engine = self._engine, None
        backend, self._backend = self._backend, None
        try:
            if engine is not None:
                engine.close(failed=failed)
        finally:
            if backend is not None:
                backend.close()

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(failed=error is not None)

    # -- readings -----------------------------------------------------------------------------

    @property
    def engine(self) -> Engine:
        """The engine, between `begin` and `close`."""
        if self._engine is None:
            raise StateAccessError(
                "the subtask is not open: use it as a context manager, or call begin()"
            )
        return self._engine

    @property
    def metrics(self) -> EngineMetrics:
        """A reading of the engine."""
        return self.engine.metrics

    @property
    def opened_version(self) -> int:
        """The version that was opened; 0 is empty."""
        return 0 if self._making is None else self._making.opened_version

    @property
    def is_restored(self) -> bool:
        """Whether an earlier version was opened."""
        return self.opened_version > 0

    # -- parts --------------------------------------------------------------------------------

    def _name_in(self, error: BaseException) -> None:
        """Tell whose state it was that storage refused; storage knows names of files only."""
        if isinstance(error, StorageError):
            task = self.task
            error.add_note(
                f"in the state of operator {task.uid!r}, subtask {task.subtask}, batch "
                f"{task.batch_id}"
            )

    def _begin_version(self) -> TaskVersion | None:
        if self._versions is None:
            return None
        task = self.task
        return self._versions.begin(
            batch_id=task.batch_id,
            subtask=task.subtask,
            parallelism=task.parallelism,
            range=task.range,
            attempt_id=task.attempt_id,
            run=task.run,
            consecutive=task.consecutive,
            new_state=self._new_state,
            restore=self._restore,
            now_us=self._now_us,
            batch_ms=self._batch_ms,
            checkpoint=task.checkpoint,
        )

    @property
    def _batch_ms(self) -> int:
        """The batch's time where the query's checkpoint has it: 0 elsewhere, and without rows."""
        is_planned = self.task.consecutive or self.task.checkpoint is not None
        # `NO_TIME` is before all times, and is 0 in names.
        return max(self._now_us // 1_000, 0) if is_planned else 0

    def _opening(self) -> Opening:
        storage = _nowhere() if self._versions is None else self._versions.storage
        return Opening(
            storage=storage,
            path=storage.url,
            uid=self.task.uid,
            version=self.opened_version,
            range=self.task.range,
            parents=() if self._making is None else self._making.parents,
            options=self._options,
            now_us=self._now_us,
            cache_bytes=self._cache_bytes,
            compaction=None if self._versions is None else self._compaction,
            operator=self._operator,
            retry_budget_s=self._retry_budget_s,
        )

    def _make_engine(self, backend: StateBackend) -> Engine:
        task = self.task
        context = RuntimeContext(
            operator_uid=task.uid,
            subtask_index=task.subtask,
            parallelism=task.parallelism,
            max_parallelism=task.max_parallelism,
            attempt_number=task.attempt_number,
            batch_id=task.batch_id,
        )
        times = self._times()
        return Engine(
            self._function,
            backend,
            context,
            key_codec=self._key_codec,
            # A subtask without rows was told no time; its timers go by the latest that is known.
            now_us=self._now_us if times is None else times.now_us,
            settings=self._settings,
            operator_state=OperatorState(self._function, task, self._making),
            lineages={} if self._making is None else lineages_of(self._making.manifests),
            times=times,
            has_event_time=self._lateness_us is not None,
        )

    def _times(self) -> Times | None:
        """What timers go by, if there are any."""
        if timer_method(self._function) is None:
            return None
        return times_of(self._making, now_us=self._now_us, lateness_us=self._lateness_us)

    def _times_after(self, timers: EngineTimers) -> Times:
        """What the version is to know."""
        times = timers.finish()
        sides = range(len(times.seen_us))
        return attrs.evolve(
            times,
            seen_us=[max(times.seen_us[side], self._seen_us.get(side, ALWAYS)) for side in sides],
            active=[side in self._seen_us for side in sides],
        )

    def _take_over(self) -> None:
        """At the beginning of a fork: check what it declares, and take cells of another backend."""
        making = self._making
        if making is None or making.source is None:
            return
        allowed = self._restore is not None and self._restore.allow_non_restored
        check_matched(making, self.engine, allowed=allowed)
        if making.converted:
            source = self._find_backend(making.source_backend)
            options_of = self._options_of
            options = default_options(source) if options_of is None else options_of(source.name)
            convert(making, self.engine, self._opening(), source, options)

    def _log_undeclared(self) -> None:
        if self.engine.operator_state is not None:
            self.engine.operator_state.log_undeclared()
        parents = () if self._making is None else self._making.parents
        stored = {name for parent in parents for name in parent.descriptions}
        if kept := sorted(stored - self.engine.descriptions().keys()):
            _log.info(
                "operator %s, subtask %d: not declared any more, and kept: %s",
                self.task.uid,
                self.task.subtask,
                ", ".join(kept),
            )

    def _commit_version(
        self, engine: Engine, times: Times | None
    ) -> tuple[CommittedState | None, str | None]:
        if self._making is None:
            return None, None
        operator_state = engine.operator_state
        content = Content() if operator_state is None else operator_state.content()
        committed = engine.backend.commit(self._making.version)
        manifest_id = self._making.commit(
            committed,
            descriptions=engine.descriptions(),
            generations=engine.generations(),
            operator_state=content.stored(),
            operator_files=[blob.name for blob in content.files()],
            metrics=self._told(),
            times=None if times is None else times.stored(),
        )
        engine.backend.installed(manifest_id)
        return committed, manifest_id

    def _told(self) -> dict[str, Any]:
        """What the manifest tells people."""
        told: dict[str, Any] = {"opening_s": self._opening_s}
        states = self.engine.states.values()
        durations = {s.spec.name: s.descriptor.ttl.ttl_us for s in states if s.descriptor.ttl}
        if durations:
            told[TTL_US] = durations
        if self._compaction is not None and (service := self._compaction.metrics()):
            told["compaction"] = dict(service)
        if counted := nonzero(self.metrics):
            told["engine"] = counted
        return told

    def _reported(
        self, committed: CommittedState | None, manifest_id: str | None, commit_s: float
    ) -> SubtaskReport:
        return SubtaskReport(
            version=0 if self._making is None else self._making.version,
            opened_version=self.opened_version,
            manifest_id=manifest_id,
            keys=None if committed is None else committed.keys,
            bytes_total=0 if committed is None else committed.bytes_total,
            bytes_written=0 if committed is None else committed.bytes_written,
            opening_s=self._opening_s,
            commit_s=commit_s,
            metrics=self.metrics,
        )


def _nowhere() -> ObjectStorage:
    """A storage of this subtask's own, which goes when the subtask does."""
    return ObstoreStorage(MemoryStore(), f"memory://ephemeral-{random_id()}")
