"""Everything that the jobs of one process share, with the counts of their events."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import attrs

from forebay_compaction_ray.client.outage import Outage
from forebay_compaction_ray.events import EVENTS
from forebay_compaction_ray.options import RemoteOptions
from forebay_state_api.contract.compaction_job import CompactionJob
from forebay_state_api.contract.compactor import Compactor, VerifyingCompactor
from forebay_state_api.contract.files import StateFile
from forebay_state_api.contract.object_storage import ObjectStorage


class Counts:
    """Counts events by name. Thread-safe."""

    def __init__(self) -> None:
        """Begin with no events."""
        self._all: Final[Counter[str]] = Counter()
        self._unsent: Counter[str] = Counter()
        self._lock: Final = threading.Lock()

    def all(self) -> dict[str, int]:
        """Return how often each event has happened."""
        with self._lock:
            return dict(self._all)

    def add(self, event: str) -> None:
        """Count an event once more; raises `KeyError` for one that is not in `EVENTS`."""
        if event not in EVENTS:
            raise KeyError(event)
        with self._lock:
            self._all[event] += 1
            self._unsent[event] += 1

    @contextmanager
    def reporting(self) -> Iterator[dict[str, int]]:
        """Yield the counts that no gateway has received; after an error they are still unsent."""
        with self._lock:
            taken, self._unsent = self._unsent, Counter()
        try:
            yield dict(taken)
        except BaseException:
            with self._lock:
                self._unsent.update(taken)
            raise


@attrs.frozen(kw_only=True)
class ClientContext:
    """The surroundings of all jobs of a process."""

    storage: ObjectStorage
    """The state directory."""
    options: RemoteOptions
    find_compactor: Callable[[str], Compactor]
    clock: Callable[[], float]
    counts: Counts = attrs.field(factory=Counts)
    handed_back_s: dict[str, float] = attrs.field(factory=dict)
    """Work, as in `Submission.work` → when its first job was submitted, of those that were handed
    back because something below their prefix was damaged, or another job's."""
    outage: Outage = attrs.field()
    one_at_a_time: threading.Lock = attrs.field(factory=threading.Lock)
    """Held by the job that this process compacts."""

    @outage.default
    def _none_yet(self) -> Outage:
        return Outage(self.options)

    def read(self, job: CompactionJob, files: Iterable[StateFile]) -> bool:
        """Raise `CorruptStateError` for a damaged file; return whether the format has a check."""
        compactor = self.find_compactor(job.format)
        if not isinstance(compactor, VerifyingCompactor):
            return False
        here = self.storage.child(job.operator)
        for file in files:
            compactor.verify(file, here)
        return True
