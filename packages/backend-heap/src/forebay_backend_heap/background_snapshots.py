"""Writes full snapshots on a thread of the process, during the micro-batches that follow.

A commit that finds a snapshot due *plans* it: its manifest protects the file's name, and when the
manifest is durable the process copies the state and writes the file in the background. Each later
manifest repeats the plan, until a commit finds the file and names it in place of the files that it
covers. So a manifest that names the file has an ancestor that protected it, and the janitor deletes
a file that no manifest names any more, whenever it was written.

A plan may fail: the process ends, storage refuses the file, another attempt's manifest counts. Then
nobody finds the file, and the commit writes the snapshot when the deltas have grown to twice the
size at which it was planned (`forebay_backend_heap.snapshot`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Self

import attrs

from forebay_backend_heap.files import (
    PREFIX_BYTES,
    FileRole,
    Section,
    file_bytes,
    head_bytes,
    parse_head,
    state_file,
)
from forebay_backend_heap.resident import Resident
from forebay_state_api import KeyGroupRange
from forebay_state_api.contract.file_names import data_name
from forebay_state_api.contract.files import StateFile
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.daemon_pool import DaemonPool
from forebay_state_api.errors import CorruptStateError
from forebay_state_api.threads import PerProcess

_log = logging.getLogger(__name__)

_KEPT: Final = 4
"""Written snapshots that a process remembers until a commit names them: others are looked for."""
_SHARE: Final = 0.25
"""The part of the time in which writing works: micro-batches run on the same interpreter."""
_LONGEST_PAUSE_S: Final = 0.1


class Pauses:
    """Sleeps when called, so that the calling thread works for a part of the time."""

    def __init__(self) -> None:
        self._paused_at = time.thread_time()

    def __call__(self) -> None:
        worked_s = time.thread_time() - self._paused_at
        time.sleep(min(worked_s * (1 / _SHARE - 1), _LONGEST_PAUSE_S))
        self._paused_at = time.thread_time()


@attrs.frozen(kw_only=True)
class SnapshotPlan:
    """A snapshot of one version and range, which exists only when it has been written."""

    name: str
    version: int
    """The version whose state it holds."""
    after: str
    """The newest delta that it includes; it replaces this one and all files before it."""

    @classmethod
    def begin(cls, version: int, after: str) -> Self:
        """Plan a snapshot of ``version``, under a fresh name."""
        name = data_name(version, f"heap-{FileRole.SNAPSHOT.value}-{version}")
        return cls(name=name, version=version, after=after)

    @classmethod
    def of(cls, meta: Mapping[str, Any]) -> Self | None:
        """Load the plan from a manifest's metadata; ``None`` if it has none."""
        plain = meta.get("planned")
        return None if plain is None else cls(**plain)

    def is_looked_for(self, opened: int, version: int) -> bool:
        """Return whether the commit of ``version`` looks into storage for the file.

        That is once within the first version after the plan, once within the second, within the
        next two, the next four and so on, so the requests grow with the logarithm of the wait.
        """
        return (opened - self.version).bit_length() < (version - self.version).bit_length()

    def found(self, storage: ObjectStorage, groups: KeyGroupRange) -> StateFile | None:
        """Return the file if it has been written, as a manifest names it.

        One request, and two more if it is there. A file that is not whole counts as not written.
        """
        folder = self.name.rpartition("/")[0]
        listed = next((i for i in storage.list(folder) if i.name == self.name), None)
        if listed is None or listed.size < PREFIX_BYTES:
            return None
        where = f"{self.name} in {storage.url}"
        try:
            prefix = storage.get_ranges(self.name, [(0, PREFIX_BYTES)])[0]
            length = min(head_bytes(prefix), listed.size)
            head = storage.get_ranges(self.name, [(0, length)])[0]
            sections = parse_head(head, where)
        except CorruptStateError as damaged:
            _log.warning("a snapshot is not used, and a commit writes another one: %s", damaged)
            return None
        if listed.size != length + sum(section.size for section in sections):
            _log.warning(
                "a snapshot is not used, and a commit writes another one: %s is torn", where
            )
            return None
        return self._file(groups, head, listed.size, sections)

    def write(self, storage: ObjectStorage, frozen: Resident) -> StateFile:
        """Write the file; return it as a manifest names it."""
        sections = frozen.snapshot(Pauses())
        file = file_bytes(FileRole.SNAPSHOT, self.version, sections)
        storage.put(self.name, file.data)
        return self._file(frozen.groups, file.head, len(file.data), sections)

    def _file(
        self, groups: KeyGroupRange, head: bytes, size: int, sections: Sequence[Section]
    ) -> StateFile:
        version = self.version
        return state_file(self.name, FileRole.SNAPSHOT, version, groups, head, size, sections)


class SnapshotThread:
    """Writes the snapshots of one process, one at a time. Thread-safe.

    A process so holds at most one copy of a state in addition to its cache.
    """

    def __init__(self, pool: DaemonPool | None = None) -> None:
        """The thread is started when it is first needed."""
        self._pool: Final = pool or DaemonPool("forebay-heap-snapshot")
        self._lock: Final = threading.Lock()
        self._writing: str | None = None
        self._written: Final[OrderedDict[str, tuple[StateFile, Resident | None]]] = OrderedDict()

    @property
    def is_free(self) -> bool:
        """Return whether a snapshot would be written at once."""
        return self._writing is None

    def write(self, plan: SnapshotPlan, storage: ObjectStorage, resident: Resident) -> None:
        """Copy ``resident`` and begin to write it; let the plan fail if that is not possible now.

        Called while ``resident`` has the state that the plan is for.
        """
        with self._lock:
            if self._writing is not None:
                return
            self._writing = plan.name
        begun = False
        try:
            frozen = resident.frozen()
            begun = self._pool.do_if_possible(lambda: self._write(plan, storage, frozen))
        finally:
            if not begun:
                self._writing = None

    def knows(self, name: str) -> bool:
        """Return whether this process writes the file, or has written it."""
        with self._lock:
            return name == self._writing or name in self._written

    def take(self, name: str, resident: Resident) -> StateFile | None:
        """Return the file if this process has written it.

        Compacts ``resident``, which may be the state that was copied for it, as the copy was.
        """
        with self._lock:
            file, frozen = self._written.get(name, (None, None))
            if file is not None:
                self._written[name] = file, None
        if frozen is not None:
            resident.compact_as(frozen)
        return file

    def _write(self, plan: SnapshotPlan, storage: ObjectStorage, frozen: Resident) -> None:
        file = None
        try:
            file = plan.write(storage, frozen)
        finally:
            frozen.thaw()
            with self._lock:
                self._writing = None
                if file is not None:
                    self._written[plan.name] = file, frozen
                    if len(self._written) > _KEPT:
                        self._written.popitem(last=False)


THREAD: Final[Callable[[], SnapshotThread]] = PerProcess(SnapshotThread)
"""Returns the thread of this process."""
