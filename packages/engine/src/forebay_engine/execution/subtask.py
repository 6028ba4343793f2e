"""Run one subtask of one micro-batch, from the beginning of its version to the manifest.

Everything that runs a keyed function uses this module: the Spark runtime, the test harness and the
conformance kit. A subtask is used by one thread, like this::

    with Subtask(function, HeapBackend, task, versions=versions, ...) as subtask:
        subtask.process(rows, keys, groups)     # any number of times
        rows = subtask.take_rows()              # at any time
        subtask.drain()                         # every record is done
        last = subtask.take_rows()
        report = subtask.commit()               # snapshot_state; the version is durable

Leaving the block without `Subtask.commit`, by an exception or not, makes no version: the next
attempt opens the same version as this one. Without ``versions`` nothing is read or stored: the
state begins empty and ends with the subtask, as for a bounded DataFrame.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, cast

import attrs
from obstore.store import MemoryStore

from forebay_engine.execution.batch_functions import WHOLE, has_timers
from forebay_engine.execution.engine import Engine
from forebay_engine.execution.identity import SubtaskIdentity, SubtaskReport
from forebay_engine.execution.late_rows import COLUMN, DROP, PROCESS, LateRow
from forebay_engine.execution.subtask_metrics import SubtaskMetrics, commit_figures
from forebay_engine.execution.task_clients import TaskClients, open_clients
from forebay_engine.journal.call_journal import CallJournal
from forebay_engine.operator_state.subtask_state import OperatorState
from forebay_engine.stored.restore import check_complete, check_matched, convert, default_options
from forebay_engine.stored.sibling_caches import SiblingCaches
from forebay_engine.timers.event_times import EventTimeBounds
from forebay_engine.timers.starting_clocks import times_of
from forebay_engine.timers.watermark import ALWAYS, TimerClocks
from forebay_engine.versions.format.manifest import TTL_US, lineages_of
from forebay_engine.versions.format.manifest_metrics import nested
from forebay_engine.versions.format.operator_state_entries import OperatorStateContent
from forebay_state_api.contract.backend import Opening, StateBackend
from forebay_state_api.contract.file_names import random_id
from forebay_state_api.contract.files import CommittedState
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import StateAccessError, StorageError
from forebay_state_api.job.context import RuntimeContext
from forebay_state_api.metrics.engine import EngineMetrics
from forebay_state_api.metrics.fields import keyed_figures
from forebay_state_api.metrics.keyed import GROUP_ROWS
from forebay_state_api.metrics.phases import Phase
from forebay_state_api.plugins import plugins
from forebay_state_api.settings import RETRY_BUDGET, EngineSettings
from forebay_state_api.storage.obstore import ObstoreStorage

if TYPE_CHECKING:
    from forebay_engine.columns.engine import BatchEngine
    from forebay_engine.columns.outputs import Output
    from forebay_engine.columns.rows import Rows
    from forebay_engine.execution.loop_thread import LentLoop
    from forebay_engine.isolation.failed_record import ErrorRows
    from forebay_engine.timers.event_times import EventTimeRules
    from forebay_engine.timers.service import EngineTimers
    from forebay_engine.versions.choosing.forks import RestoreFrom
    from forebay_engine.versions.operator import OperatorVersions, TaskVersion
    from forebay_state_api.codecs import ValueCodec
    from forebay_state_api.contract.compaction_service import CompactionService

_log = logging.getLogger(__name__)

DEFAULT_CACHE_BYTES: Final = 1 << 30
"""The default budget for data that a process's backends keep between batches."""

DEFAULT_RETRY_BUDGET_S: Final[float] = RETRY_BUDGET.default_value()


class Subtask:
    """Runs a function over the rows of one subtask and micro-batch, and commits its state.

    ``function`` must be a fresh copy; ``now_us`` is the micro-batch's time, the same for every
    attempt. ``restore`` is the state to begin with instead of empty state. ``find_backend`` finds
    the backend that stored it (default: among the installed ones), and ``options_of`` returns that
    backend's settings by its name (default: their defaults). ``retry_budget_s`` is
    `Opening.retry_budget_s`. ``compaction`` runs the jobs of the operator whose folder is
    ``operator`` below the state directory; without it the backend submits none. ``event_times`` are
    the rules for the event times of its inputs, ``None`` without event times, and ``late`` (of
    `late_rows`) decides what callers do with rows for which `is_late` is true. Entering the
    context begins the version, opens the backend and calls the function's ``open``; it raises the
    errors of `OperatorVersions.begin` and `StateBackend.open`, after releasing everything.
    ``lend_loop`` lends the first coroutine of a plain method a loop, whose thread is to run the
    subtask from then on, as `awaits_anything` says; without it there is the loop of this thread.
    Without ``use_kept_answers``, ``ctx.kept_call`` finds none of the answers that are kept.
    With ``batch_output`` the function is a batch function: `process_slice` runs it, and
    ``key_names`` are the names of its key columns.
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
        event_times: EventTimeRules | None = None,
        late: str = PROCESS,
        error_rows: ErrorRows | None = None,
        subtask_metrics: SubtaskMetrics | None = None,
        lend_loop: Callable[[], LentLoop] | None = None,
        use_kept_answers: bool = True,
        batch_output: Output | None = None,
        key_names: Sequence[str] = (),
    ) -> None:
        self.task = task
        self.subtask_metrics = subtask_metrics or SubtaskMetrics()
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
        self._event_times = event_times
        self._late = late
        self._error_rows = error_rows
        self._lend_loop = lend_loop
        self._call_journal = self._new_call_journal(use=use_kept_answers)
        self._batch_output = batch_output
        self._key_names = key_names
        self._seen_us: dict[int, int] = {}
        self._following: set[int] = set()
        self._ahead: set[int] = set()
        """Inputs with event times that are too far ahead."""
        self._clocks: TimerClocks | None = None
        self._making: TaskVersion | None = None
        self._backend: StateBackend | None = None
        self._engine: Engine | None = None
        self._clients: TaskClients | None = None
        self._rewrites = False
        """Whether the backend is opened empty, and gets a copy of what is stored."""
        self._opening_s = 0.0
        self._report: SubtaskReport | None = None

    # -- life ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin the version, open it and call the function's methods before its first record."""
        started = time.perf_counter()
        with self.subtask_metrics.clock.during(Phase.OPEN):
            try:
                self._making = self._begin_version()
                self._open()
                self._take_over()
            except BaseException as error:
                self._name_in(error)
                self.close(failed=True)
                raise
            self._log_undeclared()
        self.subtask_metrics.opened()
        self._opening_s = time.perf_counter() - started

    def process(
        self, rows: Iterable[Any], keys: Sequence[Any], groups: Sequence[int], side: int = 0
    ) -> None:
        """Admit rows of input ``side``, in order (0; or 1 for the second input).

        ``keys`` and ``groups`` are each row's key and key group. A record that cannot end yet stays
        in flight when this returns.
        """
        with self.subtask_metrics.clock.during(Phase.FUNCTION):
            self.engine.process(rows, keys, groups, side)

    def process_broadcast(self, rows: Iterable[Any]) -> None:
        """Run rows of the broadcast input, in order, each after everything before it is done.

        Every subtask of the micro-batch gets the same rows, in the same order, before others.
        """
        with self.subtask_metrics.clock.during(Phase.FUNCTION):
            self.engine.process_broadcast(rows)

    def process_slice(self, rows: Rows, keys: Sequence[Any], key_groups: Any) -> None:
        """Run a batch function over a slice, as `BatchEngine.process_slice` does."""
        with self.subtask_metrics.clock.during(Phase.FUNCTION):
            self._batch_engine.process_slice(rows, keys, key_groups)

    @property
    def reads_ahead(self) -> bool:
        """Whether the batch function's states may wait for storage, so that `read_ahead` helps."""
        return self._batch_engine.reads_ahead

    def read_ahead(self, rows: Rows, keys: Sequence[Any], key_groups: Any) -> None:
        """Begin to read the state of the slice after the next one that is processed."""
        self._batch_engine.read_ahead(rows, keys, key_groups)

    def end_batch(self) -> None:
        """Call the batch function's ``end_batch``, after the last slice."""
        with self.subtask_metrics.clock.during(Phase.FUNCTION):
            self._batch_engine.end_batch()

    @property
    def takes_all_at_once(self) -> bool:
        """Whether the batch function gets all rows of a micro-batch in one slice."""
        return bool(self._function.slices == WHOLE)

    def saw_event_time(
        self, at_us: int | None, side: int = 0, *, late: int = 0, ahead: int = 0
    ) -> None:
        """Record the event times of some rows of input ``side``.

        ``at_us`` is the latest one that is not too far ahead, ``None`` if there is no such one;
        ``late`` and ``ahead`` are the numbers of late rows, and of rows that are too far ahead.
        """
        if at_us is not None and side not in self._following:
            self._seen_us[side] = max(at_us, self._seen_us.get(side, at_us))
        if ahead:
            self._ahead.add(side)
        counters = self.engine.counters
        counters.late_rows += late
        counters.rows_ahead += ahead
        if self._late == DROP:
            counters.late_rows_dropped += late + ahead

    def saw_event_times(self, times: Sequence[int], side: int = 0) -> None:
        """Record the event time of each of some rows of input ``side``."""
        bounds = self.event_time_bounds
        usual = [at_us for at_us in times if at_us <= bounds.furthest_us]
        late = sum(at_us <= bounds.watermark_us for at_us in times)
        ahead = len(times) - len(usual)
        self.saw_event_time(max(usual, default=None), side, late=late, ahead=ahead)

    @property
    def event_time_bounds(self) -> EventTimeBounds:
        """The event times of rows that are neither late nor too far ahead."""
        if self._event_times is None or self._clocks is None:
            return EventTimeBounds(self.watermark_us)
        return self._event_times.bounds(watermark_us=self.watermark_us, now_us=self._clocks.now_us)

    def follow(self, mark_us: int | None, side: int = 0) -> None:
        """Take the watermark of the operator before as the latest event time of input ``side``.

        Event times of its rows do not count from then on. ``None`` is no watermark yet.
        """
        self._following.add(side)
        self._seen_us.pop(side, None)
        if mark_us is not None:
            self._seen_us[side] = mark_us

    def is_late(self, at_us: int) -> bool:
        """Return whether a row of this event time is late, or too far ahead, which is the same."""
        return self.event_time_bounds.excludes(at_us)

    @property
    def processes_late(self) -> bool:
        """Whether `process` gets late rows too; if not, `leave_out` gets them."""
        return self._late == PROCESS

    @property
    def emits_late(self) -> bool:
        """Whether a row is emitted for each late row."""
        return self._late == COLUMN

    def leave_out(self, rows: Iterable[Any], side: int = 0) -> None:
        """Emit what describes late rows of input ``side``, unless they are dropped.

        `saw_event_time` counts them.
        """
        if self.emits_late:
            watermark_us = self.watermark_us
            self.engine.emit_late([LateRow.of(row, side, watermark_us) for row in rows])

    @property
    def watermark_us(self) -> int:
        """The watermark in µs; earlier than every time if there is none."""
        return ALWAYS if self._clocks is None else self._clocks.watermark_us

    @property
    def mark_us(self) -> int | None:
        """The watermark in µs; ``None`` before the first one."""
        return None if self.watermark_us == ALWAYS else self.watermark_us

    @property
    def watermark_before_us(self) -> int:
        """The watermark of the micro-batch before; earlier than every time if there was none."""
        manifests = () if self._making is None else self._making.manifests
        before = [TimerClocks.loaded(manifest.times).watermark_us for manifest in manifests]
        return max(before, default=ALWAYS)

    def emitted_late(self, rows: int) -> None:
        """Count emitted rows whose event time is not after the watermark that Spark has."""
        self.engine.counters.rows_out_late += rows

    def fire_timers(self) -> bool:
        """Fire some timers that are due; return whether there may be more.

        `process` and `drain` fire the rest. Calling this is optional; it lets the caller take rows
        in between.
        """
        with self.subtask_metrics.clock.during(Phase.FUNCTION):
            return self.engine.fire_timers()

    def end_event_time(self) -> None:
        """Wait until every record is done, and let all event-time timers be due.

        For the end of a bounded input; `fire_timers` and `drain` fire them. The watermark that is
        stored stays that of the rows.
        """
        with self.subtask_metrics.clock.during(Phase.FUNCTION):
            self.engine.end_event_time()

    @property
    def rows_ready(self) -> int:
        """The number of rows that the next `take_rows` returns if nothing runs in between."""
        return self.engine.rows_ready

    def take_rows(self) -> Sequence[Any]:
        """Return the rows emitted since the last call, as the function made them.

        Of a batch function it is what `BatchEngine.take_rows` returns.
        """
        return self.engine.take_rows()

    def drain(self) -> None:
        """Wait until every record is done and every due timer has fired.

        `take_rows` then returns the last rows.
        """
        with self.subtask_metrics.clock.during(Phase.FUNCTION):
            self.engine.drain()

    def commit(self) -> SubtaskReport:
        """Drain, call ``snapshot_state``, make the state durable, and commit the version.

        Call it once, before the last rows are handed on. If it raises, nothing was committed.
        """
        if self._report is not None:
            raise StateAccessError("this subtask has committed already")
        engine, clock = self.engine, self.subtask_metrics.clock
        self.drain()
        started = time.perf_counter()
        with clock.during(Phase.COMMIT_SNAPSHOT):
            engine.snapshot()
            engine.hand_over()
            engine.clean_up()
            times = None if self._clocks is None else self._times_after(self._clocks, engine.timers)
        before = clock.switch(Phase.COMMIT_FILES)
        try:
            committed, manifest_id = self._commit_version(engine, times)
        except StorageError as error:
            self._name_in(error)
            raise
        finally:
            clock.switch(before)
        self._report = self._reported(committed, manifest_id, time.perf_counter() - started)
        return self._report

    def siblings(self) -> SiblingCaches | None:
        """Return the process's cached siblings, after `commit`; ``None`` without versions."""
        if self._versions is None:
            return None
        version, run_key = self.task.batch_id + 1, self.task.run.key
        return SiblingCaches(self._backend_class, self._opening(), version, run_key)

    def close(self, *, failed: bool = False) -> None:
        """Close function, engine and backend; uncommitted work is lost. Safe to call twice.

        With ``failed``, exceptions of the function's ``close`` are dropped in favour of it.
        """
        engine, self._engine = self._engine, None
        clients, self._clients = self._clients, None
        backend, self._backend = self._backend, None
        try:
            if engine is not None:
                engine.close(failed=failed)
        finally:
            if self._call_journal is not None:
                self._call_journal.close()
            if backend is not None:
                backend.close()
            if clients is not None:
                clients.release(failed=failed)

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
    def _batch_engine(self) -> BatchEngine:
        return cast("BatchEngine", self.engine)

    @property
    def awaits_anything(self) -> bool:
        """Whether its records may await anything, so that the loop's thread is to run it."""
        return self._engine is not None and self._engine.awaits_anything

    def give_loop_back(self) -> None:
        """Give a lent loop back; call it after each call of another method, on its thread.

        Not before: the loop's thread runs records as soon as it has the loop.
        """
        if self._engine is not None:
            self._engine.give_loop_back()

    @property
    def metrics(self) -> EngineMetrics:
        """Return the engine's current metrics."""
        return self.engine.metrics

    @property
    def opened_version(self) -> int:
        """The version that was opened; 0 is the empty version."""
        return 0 if self._making is None else self._making.opened_version

    @property
    def is_restored(self) -> bool:
        """Whether an earlier version was opened."""
        return self.opened_version > 0

    # -- parts --------------------------------------------------------------------------------

    def _name_in(self, error: BaseException) -> None:
        """Add the operator to a storage error, because storage knows only file names."""
        if isinstance(error, StorageError):
            task = self.task
            error.add_note(
                f"in the state of operator {task.uid!r}, subtask {task.subtask}, batch "
                f"{task.batch_id}"
            )

    def _begin_version(self) -> TaskVersion | None:
        if self._versions is None:
            return None
        task, journal = self.task, self._call_journal
        assert journal is not None
        if journal.is_expected:
            journal.begin_list()
        making = self._versions.begin(
            batch_id=task.batch_id,
            subtask=task.subtask,
            parallelism=task.parallelism,
            range=task.range,
            attempt_id=task.attempt_id,
            run=task.run,
            consecutive=task.consecutive,
            bounded=task.bounded,
            new_state=self._new_state,
            restore=self._restore,
            now_us=self._now_us,
            batch_ms=self._batch_ms,
            checkpoint=task.checkpoint,
            every_clock=self._event_times is not None,
        )
        journal.begin(making.coordinates)
        return making

    def _new_call_journal(self, *, use: bool) -> CallJournal | None:
        if self._versions is None:
            return None
        version, batch_ms = self.task.batch_id + 1, self._batch_ms
        storage = self._versions.storage
        return CallJournal(storage, version=version, batch_ms=batch_ms, use=use)

    @property
    def _batch_ms(self) -> int:
        """Return the batch's time in the query's checkpoint; 0 if unknown."""
        is_planned = self.task.consecutive or self.task.checkpoint is not None
        # `NO_TIME` is before all times, and is 0 in names.
        return max(self._now_us // 1_000, 0) if is_planned else 0

    def _opening(self) -> Opening:
        storage = _nowhere() if self._versions is None else self._versions.storage
        return Opening(
            storage=storage,
            path=storage.url,
            uid=self.task.uid,
            version=0 if self._rewrites else self.opened_version,
            range=self.task.range,
            parents=() if self._making is None or self._rewrites else self._making.parents,
            options=self._options,
            now_us=self._now_us,
            cache_bytes=self._cache_bytes,
            compaction=None if self._versions is None else self._compaction,
            operator=self._operator,
            run=self.task.run.known_spark_run,
            retry_budget_s=self._retry_budget_s,
        )

    def _open(self) -> None:
        """Open the backend and the function.

        If the function switches the TTL of a stored state, open both again: a copy of the function,
        and an empty backend, into which `_take_over` copies what is stored.
        """
        self._rewrites = self._making is not None and bool(self._making.converted)
        stored = self._making is not None and self._making.manifests
        again = copy.copy(self._function) if stored else None
        engine = self._open_engine()
        try:
            engine.open()
        except Exception:
            if not engine.states.ttl_switched:
                raise
        if engine.states.ttl_switched:
            _log.info("operator %s: rewriting its state, a TTL was switched", self.task.uid)
            self.close(failed=True)
            self._function, self._rewrites = again, True
            self._open_engine().open()

    def _open_engine(self) -> Engine:
        self._backend = self._backend_class.open(self._opening())
        self._engine = self._make_engine(self._backend)
        return self._engine

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
        self._clients = open_clients(self._function, task.uid)
        if self._clients is not None:
            context.clients = self._clients
        times = self._clocks = self._times()
        return self._engine_class()(
            self._function,
            backend,
            context,
            key_codec=self._key_codec,
            # Without a time, as under Connect without rows, timers use the latest known one.
            now_us=self._now_us if times is None else times.now_us,
            settings=self._settings,
            operator_state=OperatorState(self._function, task, self._making),
            lineages={} if self._making is None else lineages_of(self._making.manifests),
            rewrites=self._rewrites,
            times=times,
            has_event_time=self._event_times is not None,
            error_rows=self._error_rows,
            subtask_metrics=self.subtask_metrics,
            query=task.query or task.run.keyed_uuid,
            lend_loop=self._lend_loop,
            call_journal=self._call_journal,
        )

    def _engine_class(self) -> Callable[..., Engine]:
        if self._batch_output is None:
            return Engine
        from forebay_engine.columns.engine import BatchEngine  # needs numpy and pyarrow

        return partial(BatchEngine, output=self._batch_output, key_names=self._key_names)

    def _times(self) -> TimerClocks | None:
        """Return the clocks, if there are timers or event times."""
        timers = has_timers(self._function, by_columns=self._batch_output is not None)
        if not timers and self._event_times is None:
            return None
        return times_of(self._making, now_us=self._now_us, rules=self._event_times)

    def _times_after(self, times: TimerClocks, timers: EngineTimers | None) -> TimerClocks:
        """Return the clocks for the version to store; ``times`` are the micro-batch's."""
        if timers is not None:
            times = timers.finish()
        sides = range(len(times.seen_us))
        times = attrs.evolve(
            times,
            seen_us=[max(times.seen_us[side], self._seen_us.get(side, ALWAYS)) for side in sides],
            active=[side in self._seen_us for side in sides],
        )
        if not times.silent_us:
            return times
        only_ahead = [side in self._ahead - self._seen_us.keys() for side in sides]
        times = attrs.evolve(times, only_ahead=only_ahead)
        # All subtasks know the same marks and silence, and one name of the version carries them.
        return times if self.task.subtask == 0 else times.without_silence()

    def _take_over(self) -> None:
        """At the start of a fork, check its declarations; copy cells into an empty backend."""
        making = self._making
        if making is None:
            return
        allowed = self._restore is not None and self._restore.allow_non_restored
        check_matched(making, self.engine, allowed=allowed)
        if not self._rewrites:
            return
        source, options = self._backend_class, self._options
        if making.converted:
            source = self._find_backend(making.source_backend)
            options_of = self._options_of
            options = default_options(source) if options_of is None else options_of(source.name)
        else:
            check_complete(making, self.engine)
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
        self, engine: Engine, times: TimerClocks | None
    ) -> tuple[CommittedState | None, str | None]:
        if self._making is None:
            return None, None
        operator_state = engine.operator_state
        content = OperatorStateContent() if operator_state is None else operator_state.content()
        clock, journal = self.subtask_metrics.clock, self._call_journal
        assert journal is not None
        journal.end()
        committed = engine.backend.commit(self._making.version)
        # A sink may fail after all manifests: Spark then repeats the micro-batch.
        journal.finish()

        def metrics() -> dict[str, Any]:
            clock.switch(Phase.COMMIT_MANIFEST)
            return self._manifest_metrics(committed)

        clock.switch(Phase.COMMIT_CHECK)
        manifest_id = self._making.commit(
            committed,
            descriptions=engine.descriptions(),
            generations=engine.generations(),
            operator_state=content.stored(),
            operator_files=[blob.name for blob in content.files()],
            metrics=metrics,
            times=None if times is None else times.stored(),
        )
        clock.switch(Phase.COMMIT_INSTALL)
        engine.backend.installed(manifest_id)
        return committed, manifest_id

    def _figures(self, committed: CommittedState | None) -> dict[str, float]:
        """Return the figures measured so far, by the keys of metrics."""
        return {
            **self.subtask_metrics.phases(),
            **keyed_figures(self.metrics),
            **self.subtask_metrics.rows_of_groups(),
            **self.engine.call_figures(),
            **self.subtask_metrics.storage(),
            **self.subtask_metrics.reads(),
            **({"commits": 1} if committed is None else commit_figures(committed)),
            **self.engine.backend.measured(),
        }

    def _manifest_metrics(self, committed: CommittedState) -> dict[str, Any]:
        """Return the manifest's metrics."""
        metrics: dict[str, Any] = {"opening_s": self._opening_s, **nested(self._figures(committed))}
        if requests := metrics.get("storage_requests"):
            requests["put"] += 1  # the manifest's own
        states = self.engine.states.values()
        durations = {s.spec.name: s.descriptor.ttl.ttl_us for s in states if s.descriptor.ttl}
        if durations:
            metrics[TTL_US] = durations
        if self._compaction is not None and (service := self._compaction.metrics()):
            metrics["compaction"] = dict(service)
        if access := self.subtask_metrics.access():
            metrics["state_access_seconds"] = access
        if self.subtask_metrics.group_rows is not None:
            metrics[GROUP_ROWS] = list(self.subtask_metrics.group_rows())
        return metrics

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
            figures=self._figures(committed),
        )


def _nowhere() -> ObjectStorage:
    """Return a storage that is private to this subtask and ends with it."""
    return ObstoreStorage(MemoryStore(), f"memory://ephemeral-{random_id()}")
