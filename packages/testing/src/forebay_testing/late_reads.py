"""`late_backend`: any backend, with reads that are answered late and out of order.

::

    class TestMyBackendLate(StateBackendTests):
        @pytest.fixture
        def backend_class(self):
            return late_backend(MyBackend, seed=1)

Nothing is resident: cells that a micro-batch has not read or written yet are read from the backend,
as from a backend on slow storage. A seed decides which pending read is answered next, and when.
Reads run on the task thread, so a seed always gives the same run.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from random import Random
from typing import Any, ClassVar, Final

from forebay_engine.execution.read_requests import ReadExecutor
from forebay_engine.execution.scheduler import Scheduler
from forebay_state_api.contract.backend import (
    Capability,
    Opening,
    Scan,
    StateBackend,
    Table,
    TableSpec,
)
from forebay_state_api.contract.changes import (
    ABSENT,
    Changes,
    ListChange,
    MapChange,
    PointChanges,
    Space,
)
from forebay_state_api.contract.files import CommittedState
from forebay_state_api.contract.key_range import KeyRange
from forebay_state_api.job.record_scope import current_scheduler
from forebay_state_api.keys import KeyGroupRange

STILL_WAITING: Final = 0.5
"""The share of polls that find no answer although reads are pending."""


def late_backend(backend_class: type[StateBackend], seed: int = 0) -> type[StateBackend]:
    """Return ``backend_class`` with reads answered late, in an order that depends on ``seed``.

    The new class has the same name, settings and files, so state can move between the two.
    """

    class Late(LateBackend):
        name = backend_class.name
        contract_version = backend_class.contract_version
        capabilities = backend_class.capabilities & ~Capability.RESIDENT
        background_cleanup = backend_class.background_cleanup
        options = backend_class.options
        inner_class = backend_class
        inner_seed = seed

    return Late


class LateBackend(StateBackend):
    """A backend whose tables are `LateTable`; `late_backend` makes a subclass for a backend."""

    inner_class: ClassVar[type[StateBackend]]
    inner_seed: ClassVar[int]

    def __init__(self, opening: Opening) -> None:
        self._inner = self.inner_class.open(opening)
        seed = f"{self.inner_seed}/{opening.version}/{opening.range.start}"
        self._reads = LateReads(Random(seed))
        self._tables: dict[str, LateTable] = {}

    @classmethod
    def open(cls, opening: Opening) -> StateBackend:
        return cls(opening)

    @classmethod
    def cached_ranges(cls, path: str, version: int) -> Collection[KeyGroupRange]:
        return cls.inner_class.cached_ranges(path, version)

    @classmethod
    def catch_up(cls, opening: Opening) -> None:
        cls.inner_class.catch_up(opening)

    def table(self, spec: TableSpec) -> Table:
        inner = self._inner.table(spec)
        scheduler = current_scheduler()
        if isinstance(scheduler, Scheduler):
            scheduler.read_through(self._reads)
        return self._tables.setdefault(spec.name, LateTable(inner))

    def commit(self, version: int) -> CommittedState:
        return self._inner.commit(version)

    def installed(self, manifest_id: str) -> None:
        self._inner.installed(manifest_id)

    def close(self) -> None:
        self._inner.close()


class LateTable(Table):
    """A table that is not resident, around a table that may be."""

    def __init__(self, inner: Table) -> None:
        self._inner = inner
        self._spaces: dict[Any, Space] = {}

    def space(self, namespace: Any) -> Space:
        return self._spaces.setdefault(namespace, Space(namespace, complete=False))

    def get_many(self, namespace: Any, keys: Sequence[tuple[int, Any]]) -> list[Any]:
        return self._inner.get_many(namespace, keys)

    def get_entries(self, namespace: Any, cells: Sequence[tuple[int, Any, Any]]) -> list[Any]:
        return self._inner.get_entries(namespace, cells)

    def scan(self, namespace: Any, group: int, key: Any) -> Scan:
        return self._inner.scan(namespace, group, key)

    def scan_range(self, namespace: Any, group: int, key: Any, part: KeyRange) -> Scan:
        return self._inner.scan_range(namespace, group, key, part)

    def apply(self, changes: Changes) -> None:
        if self._inner.space(None).complete:
            _write(self._inner, changes)
        self._inner.apply(changes)

    def export(self, keys: int) -> Iterator[Changes]:
        return self._inner.export(keys)

    def keys(self, namespace: Any, page_size: int) -> Iterator[list[Any]]:
        return self._inner.keys(namespace, page_size)

    def sweep(self, checks: int, until_us: int) -> int:
        return self._inner.sweep(checks, until_us)


class LateReads(ReadExecutor):
    """The reads of one subtask: pending reads, and answers that have arrived.

    It replaces the scheduler's threads and the queue of their results.
    """

    def __init__(self, random: Random) -> None:
        self._random = random
        self._under_way: list[Callable[[], object]] = []
        self._arrived: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()

    # -- as an executor -----------------------------------------------------------------------

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run ``fn`` when it is drawn; nothing waits for the future, which is never done."""
        self._under_way.append(lambda: fn(*args, **kwargs))
        return Future()

    def map(self, fn: Callable[..., Any], *iterables: Iterable[Any], **_: Any) -> Iterator[Any]:
        """Run at once: the caller waits for all results."""
        return iter([fn(*arguments) for arguments in zip(*iterables, strict=False)])

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002, ARG002
        """Forget pending reads."""
        self._under_way.clear()

    # -- as a queue ---------------------------------------------------------------------------

    def put(self, action: Callable[[], object]) -> None:
        """Add an answer, or an action of another thread. Callable from any thread."""
        self._arrived.put(action)

    def get_nowait(self) -> Callable[[], object]:
        """Return what arrived next; raise `queue.Empty` also if a pending read is still slow."""
        if self._arrived.empty() and self._random.random() >= STILL_WAITING:
            self._carry_out()
        return self._arrived.get_nowait()

    def get(self, timeout: float | None = None) -> Callable[[], object]:
        """Return what arrives next."""
        if self._arrived.empty():
            self._carry_out()
        return self._arrived.get(timeout=timeout)

    def _carry_out(self) -> None:
        if self._under_way:
            self._under_way.pop(self._random.randrange(len(self._under_way)))()


def _write(table: Table, changes: Changes) -> None:
    """Update the cells of a resident table, which it expects before it is passed the changes."""
    for namespace, points in changes.points.items():
        _write_points(table.space(namespace).cells, points)
    for namespace, lists in changes.lists.items():
        _write_lists(table.space(namespace).cells, lists)
    for namespace, maps in changes.maps.items():
        _write_maps(table.space(namespace).cells, maps)


def _write_points(cells: dict[Any, Any], points: PointChanges) -> None:
    for key, value in zip(points.keys, points.values, strict=True):
        if value is ABSENT:
            cells.pop(key, None)
        else:
            cells[key] = value


def _write_lists(cells: dict[Any, Any], lists: Mapping[Any, ListChange]) -> None:
    for key, change in lists.items():
        older = [] if change.replaced else cells.get(key, [])
        _keep(cells, key, [*older, *change.elements])


def _write_maps(cells: dict[Any, Any], maps: Mapping[Any, MapChange]) -> None:
    for key, change in maps.items():
        older = {} if change.cleared else cells.get(key, {})
        merged = {**older, **change.entries}
        _keep(cells, key, {entry: value for entry, value in merged.items() if value is not ABSENT})


def _keep(cells: dict[Any, Any], key: Any, content: Any) -> None:
    """Replace a content, never change it in place: a scan may be reading it."""
    if content:
        cells[key] = content
    else:
        cells.pop(key, None)
