"""``--kill``: kills Spark's Python workers with SIGKILL while they are making a version."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_engine.versions.format.markers import VersionListing, list_version

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage

_LOOK_S: Final = 0.005
"""Seconds between two checks for a version that is being made."""
_INTO_S: Final = 0.02
"""Seconds from the first sign of a version until its workers are killed."""


@attrs.frozen
class Kill:
    """One killing of the workers."""

    version: int
    """The version that was being made."""
    pids: Sequence[int]
    attempts: frozenset[int]
    """Task attempts that had begun the version and had not committed it."""


class Killer(threading.Thread):
    """Kills the processes that ``workers`` returns while they make the given versions.

    If a kill comes too late to interrupt a version, it is tried again with the next version.
    """

    def __init__(
        self, storage: ObjectStorage, workers: Callable[[], list[int]], versions: Sequence[int]
    ) -> None:
        super().__init__(name="forebay-demo-killer", daemon=True)
        self._storage = storage
        self._workers = workers
        self._versions = list(versions)
        self._stopped = threading.Event()
        self._kills: list[Kill] = []

    def run(self) -> None:
        """Kill the workers once for each version, in turn."""
        killed_at = 0
        for wanted in self._versions:
            version = max(wanted, killed_at + 1)
            while not self._stopped.is_set() and not self._hit(version):
                version += 1
            killed_at = version

    def _hit(self, version: int) -> bool:
        """Wait until a version is being made, and kill; return whether that ended an attempt."""
        while not self._stopped.wait(_LOOK_S):
            if unfinished(list_version(self._storage, version)):
                self._stopped.wait(_INTO_S)
                pids = self._workers()
                end(pids)
                lost = unfinished(list_version(self._storage, version))
                if lost:
                    self._kills.append(Kill(version, pids, lost))
                return bool(lost)
        return False

    def stop(self) -> list[Kill]:
        """End the thread; return the kills that ended attempts, with these attempts."""
        self._stopped.set()
        self.join()
        kills = [attrs.evolve(kill, attempts=self._lost(kill)) for kill in self._kills]
        return [kill for kill in kills if kill.attempts]

    def _lost(self, kill: Kill) -> frozenset[int]:
        return kill.attempts & unfinished(list_version(self._storage, kill.version))


def end(pids: Iterable[int]) -> None:
    """Kill processes with SIGKILL; a process that has exited in the meantime is skipped."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has exited by itself
            os.kill(pid, signal.SIGKILL)


def unfinished(listing: VersionListing) -> frozenset[int]:
    """Return the task attempts that began a version and have not committed it."""
    began = {made.by.attempt_id for made in listing.objects}
    return frozenset(began - {made.by.attempt_id for made in listing.manifests})


def workers(jvm: Any) -> list[int]:
    """Return the process ids of a JVM's Python workers: the children of its child, the daemon."""
    daemons = jvm.ProcessHandle.current().children().toArray()
    return [worker.pid() for daemon in daemons for worker in daemon.children().toArray()]
