"""A job of one operator without Spark: the real engine, backend and version protocol.

::

    job = KeyedJob(MyBackend, storage, descriptors=[ValueStateDescriptor("n", int)])
    job.do("key", ("n.update", 1), ("n.value",))  # one micro-batch; [None, 1]
    job.restart(parallelism=3)  # a new run of the query
    job.run(MyFunction(), [("key", 5)])  # any function; rows begin with their key
"""

from __future__ import annotations

import copy
import itertools
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from forebay_engine.execution.awaitables import loop_of_thread
from forebay_engine.execution.declared_state import spec_of
from forebay_engine.execution.identity import SubtaskIdentity, SubtaskReport
from forebay_engine.execution.late_rows import PROCESS
from forebay_engine.execution.loop_thread import loop_thread
from forebay_engine.execution.record_methods import broadcast_method, record_methods
from forebay_engine.execution.subtask import DEFAULT_CACHE_BYTES, Subtask
from forebay_engine.execution.subtask_metrics import SubtaskMetrics
from forebay_engine.isolation.failed_record import ErrorRows
from forebay_engine.timers.event_times import EventTimeRules
from forebay_engine.timers.instants import us_of
from forebay_engine.versions import (
    Checkpoint,
    OperatorStorage,
    OperatorVersions,
    RestoreFrom,
    RunIdentity,
    WriterMemory,
    operator_folder,
)
from forebay_engine.versions.choosing.reader import open_version
from forebay_engine.versions.format.keyed_by import UNKNOWN
from forebay_engine.versions.format.manifest import lineages_of
from forebay_state_api.codecs import codec_for
from forebay_state_api.contract.backend import StateBackend, Table, TableSpec
from forebay_state_api.contract.changes import Changes, Shape
from forebay_state_api.contract.compaction_service import CompactionService
from forebay_state_api.contract.file_names import random_id
from forebay_state_api.contract.migration import continued
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.job.descriptors import StateDescriptor
from forebay_state_api.keys import (
    KeyGroupRange,
    canonical_key,
    key_group_of,
    key_group_range_of,
    subtask_of,
)
from forebay_state_api.settings import EngineSettings
from forebay_testing.clock import ManualClock
from forebay_testing.compaction import ImmediateCompaction
from forebay_testing.keyed_row import KeyedRow
from forebay_testing.late_rows import without_late
from forebay_testing.scripts import Access, Script, Style, script_function
from forebay_testing.virtual_clock import ReadsAtOnce, VirtualClock, VirtualTime

MICROSECOND: Final = timedelta(microseconds=1)

if TYPE_CHECKING:
    from forebay_testing.batches import Batches

_Parts = tuple[Sequence[KeyedRow], Callable[[Subtask], None], Sequence[Any], bool]
"""The rows of a subtask, what is called before them, its broadcast rows, and whether they are the
last ones of a bounded input."""
_Tables = Callable[[StateDescriptor], tuple[TableSpec, Table]]
"""Opens the table of a state."""


class KeyedJob:
    """Runs micro-batches of one operator, its subtasks one after another, on this thread."""

    def __init__(
        self,
        backend_class: type[StateBackend],
        storage: ObjectStorage,
        *,
        descriptors: Sequence[StateDescriptor] = (),
        style: Style = Style.COROUTINE,
        settings: EngineSettings | None = None,
        options: Mapping[str, Any] | None = None,
        parallelism: int = 1,
        max_parallelism: int = 8,
        key_type: Any = None,
        clock: ManualClock | None = None,
        query: str = "query",
        uid: str = "operator",
        restore: RestoreFrom | None = None,
        find_backend: Callable[[str], type[StateBackend]] | None = None,
        options_of: Callable[[str], Mapping[str, Any]] | None = None,
        forget: Callable[[], None] = lambda: None,
        compaction: CompactionService | None = None,
        event_time: Callable[[Any], datetime | None] | None = None,
        lateness: timedelta | Sequence[timedelta] = timedelta(0),
        late: str = PROCESS,
        idle_after_us: int | None = None,
        max_ahead_us: int | None = None,
        fresh: Callable[[Any], Any] = copy.copy,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        error_rows: ErrorRows | None = None,
    ) -> None:
        """``storage`` is the state directory; ``forget`` empties the caches of the process.

        ``compaction`` runs the backend's jobs; by default each runs as soon as it is submitted.
        ``restore`` is the state that the first version begins with, ``find_backend`` finds the
        backend that stored it, and ``options_of`` returns that backend's settings by its name.
        ``event_time`` returns the event time of a row, ``lateness`` is how late rows may be, for
        both inputs or for each, and ``late`` what becomes of later ones, as for ``keyed``;
        ``idle_after_us`` and ``max_ahead_us`` are as in `EventTimeRules`.
        ``fresh`` makes a subtask's copy of the function. ``cache_bytes`` is the backend's budget
        between micro-batches. With ``error_rows`` records fail alone.
        """
        self.backend_class = backend_class
        self._query = query
        self.operator = operator_folder(query, uid)
        self._root = storage
        self.storage: ObjectStorage = OperatorStorage(storage, self.operator)
        self.compaction = compaction or ImmediateCompaction.open(storage, {})
        self.descriptors = descriptors
        self.style = style
        self.settings = settings
        self.options = options or {}
        self.parallelism = parallelism
        self.max_parallelism = max_parallelism
        self.key_codec = codec_for(key_type, what=f"key of operator {uid!r}")
        self.clock = ManualClock() if clock is None else clock
        self._virtual = VirtualTime(self.clock) if isinstance(self.clock, VirtualClock) else None
        self.uid = uid
        self.restore = restore
        self.find_backend = find_backend
        self.options_of = options_of
        self.event_time = event_time
        both = [lateness] * 2 if isinstance(lateness, timedelta) else lateness
        self.lateness_us = [one // MICROSECOND for one in both]
        self.late = late
        self.idle_after_us = idle_after_us
        self.max_ahead_us = max_ahead_us
        self.inputs: int | None = None
        """The number of inputs with event times; ``None`` for those of the function."""
        self.cache_bytes = cache_bytes
        self.error_rows = error_rows
        self.keyed_by = UNKNOWN
        """The key columns, where the rows have names: set them before a micro-batch."""
        self.checkpoint: Checkpoint | None = None
        """The query's checkpoint: set it for a job that runs like a stream."""
        self.batch_id = 0
        self.batches: Batches | None = None
        """Feeds a batch function; ``None`` for functions of one row."""
        self.reports: list[SubtaskReport] = []
        """The reports of the last micro-batch's subtasks."""
        self._fresh = fresh
        self._forget = forget
        self._memory = WriterMemory()
        self._attempts = itertools.count()
        self._run = _new_run()

    # -- micro-batches ------------------------------------------------------------------------

    def run(
        self, function: Any, rows: Iterable[Any], other: Iterable[Any] = (), *, crash: bool = False
    ) -> list[Any]:
        """Run one micro-batch and return the emitted rows; each row's key is its first field.

        ``other`` are the rows of the second input, keyed or broadcast as the function has it.

        If it fails, nothing is visible to the next one, which repeats the same batch. With
        ``crash`` every subtask dies after its last record, before its commit.
        """
        records = [*self.keyed(rows)]
        if broadcast_method(function) is not None:
            return self.process(function, records, broadcast=[*other], crash=crash)
        return self.process(function, [*records, *self.keyed(other, 1)], crash=crash)

    def process(
        self,
        function: Any,
        records: Sequence[KeyedRow],
        *,
        broadcast: Sequence[Any] = (),
        given_out: Callable[[list[Any]], list[Any]] = list,
        begun: Callable[[Subtask], None] = lambda _: None,
        crash: bool = False,
        end: bool = False,
        now_us: int | None = None,
    ) -> list[Any]:
        """Run one micro-batch, as `run` does, of rows with explicit keys.

        ``broadcast`` are rows for every subtask, which come before ``records``. ``begun`` is called
        with each subtask before its first timer and row; ``given_out`` checks the rows that a
        subtask emits. With ``end``, these rows are the last ones of a bounded input. ``now_us`` is
        the micro-batch's time, for all subtasks; default: the clock's.
        """
        named: dict[str, Any] = {
            "broadcast": broadcast,
            "given_out": given_out,
            "begun": begun,
            "crash": crash,
            "end": end,
            "now_us": self.clock.now_us if now_us is None else now_us,
        }
        if self._virtual is not None:
            return self._virtual.run(lambda: self._process(function, records, **named))
        if loop_of_thread() is None:
            # A loop runs in this thread: in a notebook, or in an asynchronous test.
            return loop_thread().call(self._process, function, records, **named)
        return self._process(function, records, **named)

    def _process(
        self,
        function: Any,
        records: Sequence[KeyedRow],
        *,
        broadcast: Sequence[Any],
        given_out: Callable[[list[Any]], list[Any]],
        begun: Callable[[Subtask], None],
        crash: bool,
        end: bool,
        now_us: int,
    ) -> list[Any]:
        out, reports = [], []
        for number, mine in enumerate(self._routed(records)):
            cuts = [] if self.batches is None else self.batches.positions(len(mine))
            parts = mine, begun, broadcast, end
            whole = self._in_one_slice(function, number, now_us, *parts) if cuts else None
            with self.subtask(function, number, now_us=now_us) as running:
                if self._virtual is not None:
                    running.engine.scheduler.reads.execute_in(ReadsAtOnce(), instead=False)
                running.subtask_metrics.group_rows = self._rows_of_groups(running, mine)
                made = self._made(running, cuts, *parts)
                if whole is not None and self.batches is not None:
                    self.batches.check_cuts(made, whole, cuts)
                out += given_out(made)
                if not crash:
                    reports.append(running.commit())
        if not crash:
            self.reports = reports
            self.batch_id += 1
        return out

    def _in_one_slice(self, function: Any, number: int, now_us: int, *parts: *_Parts) -> list[Any]:
        """Return what a batch function emits for uncut rows, without a commit."""
        with self.subtask(function, number, now_us=now_us) as running:
            return self._made(running, [], *parts)

    def _made(  # noqa: PLR0917 - the parts of a micro-batch
        self,
        running: Subtask,
        cuts: Sequence[int],
        mine: Sequence[KeyedRow],
        begun: Callable[[Subtask], None],
        broadcast: Sequence[Any],
        end: bool,  # noqa: FBT001 - the same
    ) -> list[Any]:
        """Run the rows of a subtask to their end; return what it emits."""
        begun(running)
        if broadcast:
            running.process_broadcast(broadcast)
        if self.batches is None:
            self.feed(running, mine)
            made = []
        else:
            made = self.batches.feed(running, mine, cuts)
        if end:
            running.end_event_time()
        running.drain()
        rest = running.take_rows()
        return [*made, *rest] if self.batches is None else made + self.batches.rows(rest)

    def _rows_of_groups(
        self, running: Subtask, rows: Sequence[KeyedRow]
    ) -> Callable[[], list[int]]:
        """Count rows by key group, as a runtime does."""
        counts = Counter(row.group for row in rows)
        return lambda: [counts[group] for group in running.task.range]

    def keyed(self, rows: Iterable[Any], side: int = 0) -> Iterator[KeyedRow]:
        """Yield the rows of one input, whose first field is their key."""
        for row in rows:
            group = key_group_of(row[0], self.max_parallelism)
            at = None if self.event_time is None else self.event_time(row)
            at_us = None if at is None else us_of(at)
            yield KeyedRow(row, canonical_key(row[0]), group, side, at_us)

    def feed(self, running: Subtask, records: Iterable[KeyedRow]) -> None:
        """Pass rows to their subtask, in this order."""
        for side, some in itertools.groupby(records, key=lambda one: one.side):
            rows = without_late(running, list(some), side)
            if rows:
                keys, groups = [one.key for one in rows], [one.group for one in rows]
                running.process([one.row for one in rows], keys, groups, side)

    def subtask(
        self,
        function: Any,
        subtask: int = 0,
        *,
        new_state: bool = False,
        now_us: int | None = None,
    ) -> Subtask:
        """Return a subtask of the next micro-batch, with its own copy of ``function``.

        ``now_us`` is the micro-batch's time; default: the clock's.
        """
        metrics = SubtaskMetrics()
        storage = self.storage
        if type(storage) is OperatorStorage:  # not one that a test has put in its place
            storage = OperatorStorage(metrics.counted(self._root), self.operator)
        fresh = self._fresh(function)
        return Subtask(
            fresh,
            self.backend_class,
            self._identity(subtask),
            versions=self.versions(storage),
            subtask_metrics=metrics,
            key_codec=self.key_codec,
            now_us=self.clock.now_us if now_us is None else now_us,
            settings=self.settings,
            backend_options=self.options,
            cache_bytes=self.cache_bytes,
            new_state=new_state,
            restore=self.restore,
            find_backend=self.find_backend,
            options_of=self.options_of,
            compaction=self.compaction,
            operator=self.operator,
            event_times=self._event_times(fresh),
            late=self.late,
            error_rows=self.error_rows,
            batch_output=None if self.batches is None else self.batches.output,
            key_names=() if self.batches is None else self.batches.key_names,
        )

    def _event_times(self, function: Any) -> EventTimeRules | None:
        """Return the rules for the event times of a function's keyed inputs."""
        if self.event_time is None:
            return None
        inputs = self.inputs or len(record_methods(function)) or len(self.lateness_us)
        return EventTimeRules(
            lateness_us=self.lateness_us[:inputs],
            idle_after_us=self.idle_after_us,
            max_ahead_us=self.max_ahead_us,
        )

    def versions(self, storage: ObjectStorage | None = None) -> OperatorVersions:
        """Return the operator's versions, as a task sees them; ``storage`` counts its requests."""
        return OperatorVersions(
            storage or self.storage,
            uid=self.uid,
            max_parallelism=self.max_parallelism,
            backend_name=self.backend_class.name,
            keyed_by=self.keyed_by,
            memory=self._memory,
        )

    @property
    def run_key(self) -> str:
        """The key of the current run."""
        return self._run.key

    def restart(
        self,
        *,
        parallelism: int | None = None,
        batch_id: int | None = None,
        same_process: bool = False,
    ) -> None:
        """Start a new run of the query, at ``batch_id`` if the checkpoint went back."""
        self._run = _new_run()
        self._attempts = itertools.count()
        if parallelism is not None:
            self.parallelism = parallelism
        if batch_id is not None:
            self.batch_id = batch_id
        if not same_process:
            self._forget()
            self._memory.forget()

    def close(self) -> None:
        """Close the compaction service, and the loop of a `VirtualClock`."""
        self.compaction.close()
        if self._virtual is not None:
            self._virtual.close()

    # -- scripts ------------------------------------------------------------------------------

    def do(self, key: Any, *accesses: Access, crash: bool = False) -> list[Any]:
        """Run one micro-batch with one record; return the result of each access."""
        return self.scripts([(key, accesses)], crash=crash)[0]

    def scripts(
        self, calls: Sequence[tuple[Any, Sequence[Access]]], *, crash: bool = False
    ) -> list[list[Any]]:
        """Run one micro-batch with a record for each (key, accesses); return results in order."""
        rows = [Script(key, number, accesses) for number, (key, accesses) in enumerate(calls)]
        function = script_function(self.style, self.descriptors)
        results = dict(self.run(function, rows, crash=crash))
        return [results[number] for number in range(len(rows))]

    # -- looking past the state objects -------------------------------------------------------

    def peek(self, descriptor: StateDescriptor, key: Any, namespace: Any = None) -> Any:
        """Return the newest version's content: a value or ``ABSENT``, a list, or a dict by address.

        With TTL, values, elements and map entries are ``(last access in µs, value)`` pairs. Reads
        the backend's table, not the state objects, as in a process that has cached nothing.
        """
        with self._newest([key]) as tables:
            return _content(*tables(descriptor), namespace, *self._placed(key))

    def peek_all(self, keys: Sequence[Any], namespace: Any = None) -> list[list[Any]]:
        """Return, for each key, `peek` of each of the job's descriptors, with one opening."""
        with self._newest(keys) as tables:
            opened = [tables(descriptor) for descriptor in self.descriptors]
            return [
                [_content(spec, table, namespace, *self._placed(key)) for spec, table in opened]
                for key in keys
            ]

    def stored_keys(self, descriptor: StateDescriptor, subtask: int = 0) -> list[tuple[Any, Any]]:
        """Return the (namespace, key) pairs that the newest version exports for a subtask.

        Reads as `peek` does.
        """
        groups = key_group_range_of(subtask, self.parallelism, self.max_parallelism)
        with self._newest_of(groups) as tables:
            _, table = tables(descriptor)
            return [cell for page in table.export(1_000) for cell in _names(page)]

    def _placed(self, key: Any) -> tuple[int, Any]:
        """Return the key group of a key, and the key as it is stored."""
        return key_group_of(key, self.max_parallelism), canonical_key(key)

    def _newest(self, keys: Sequence[Any]) -> AbstractContextManager[_Tables]:
        groups = [key_group_of(key, self.max_parallelism) for key in keys]
        return self._newest_of(KeyGroupRange(min(groups), max(groups)))

    @contextmanager
    def _newest_of(self, groups: KeyGroupRange) -> Iterator[_Tables]:
        """Open states of the newest version as in a process that has cached nothing."""
        self._forget()
        with open_version(self.storage, uid=self.uid, range=groups) as reader:
            lineages = lineages_of(reader.manifests)
            backend = self.backend_class.open(
                reader.opening(self.options, now_us=self.clock.now_us)
            )

            def table(descriptor: StateDescriptor) -> tuple[TableSpec, Table]:
                spec, _ = spec_of(descriptor, self.key_codec, self.uid)
                spec = continued(spec, lineages.get(spec.name))
                return spec, backend.table(spec)

            try:
                yield table
            finally:
                backend.close()

    def _identity(self, subtask: int) -> SubtaskIdentity:
        return SubtaskIdentity(
            uid=self.uid,
            run=self._run,
            batch_id=self.batch_id,
            subtask=subtask,
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            attempt_id=next(self._attempts),
            query=self._query,
            **({} if self.checkpoint is None else self._streamed()),
        )

    def _streamed(self) -> dict[str, Any]:
        return {"checkpoint": self.checkpoint, "consecutive": True}

    def _routed(self, records: Iterable[KeyedRow]) -> list[list[KeyedRow]]:
        """Return the rows of each subtask."""
        routed: list[list[KeyedRow]] = [[] for _ in range(self.parallelism)]
        for one in records:
            routed[subtask_of(one.group, self.parallelism, self.max_parallelism)].append(one)
        return routed


def _new_run() -> RunIdentity:
    return RunIdentity(keyed_uuid=random_id(), app_id=None, run_id=str(uuid.uuid4()))


def _names(changes: Changes) -> Iterator[tuple[Any, Any]]:
    """Yield the (namespace, key) of everything in ``changes``."""
    for namespace, points in changes.points.items():
        yield from ((namespace, key) for key in points.keys)
    for contents in (changes.lists, changes.maps):
        yield from ((namespace, key) for namespace, found in contents.items() for key in found)


def _content(spec: TableSpec, table: Table, namespace: Any, group: int, key: Any) -> Any:
    if spec.shape is Shape.POINT:
        return table.get_many(namespace, [(group, key)])[0]
    pages = table.scan(namespace, group, key).pages(100)
    elements = list(itertools.chain.from_iterable(pages))
    return elements if spec.user_key is None else dict(elements)
