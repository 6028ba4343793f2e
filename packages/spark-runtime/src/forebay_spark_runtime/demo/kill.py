"""``--kill``: ends Spark's Python workers by SIGKILL while they are making a version."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs

from forebay_state_api.versions.markers import VersionListing, list_version

if TYPE_CHECKING:
    from forebay_state_api.storage import ObjectStorage

_LOOK_S: Final = 0.005
"""Time between two looks for a version that is being made."""
_INTO_S: Final = 0.02
"""How long a version is left to be made before its workers are killed."""


@attrs.frozen
class Kill:
    """One time that the workers were killed."""

    version: int
    """The version that was being made."""
    pids: Sequence[int]
    attempts: frozenset[int]
    """Task attempts that had begun the version and had not committed it."""


class Killer(threading.Thread):
    """Kills the workers of one JVM once in the making of each of some versions.

    A kill that comes too late to hit anything does not count: the next version is taken instead.
    """

    def __init__(self, storage: ObjectStorage, jvm_pid: int, versions: Sequence[int]) -> None:
        super().__init__(name="forebay-demo-killer", daemon=True)
        self._storage = storage
        self._jvm_pid = jvm_pid
        self._versions = list(versions)
        self._stopped = threading.Event()
        self.kills: list[Kill] = []

    def run(self) -> None:
        """Wait for each version in turn, kill, and see what was hit."""
        for version in self._versions:
            while not self._stopped.wait(_LOOK_S):
                if unfinished(list_version(self._storage, version)):
                    self._stopped.wait(_INTO_S)
                    self._kill(version)
                    break

    def _kill(self, version: int) -> None:
        pids = list(workers(self._jvm_pid))
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.kills.append(Kill(version, pids, unfinished(list_version(self._storage, version))))

    def stop(self) -> list[Kill]:
        """End; the kills, each with the attempts that were really lost."""
        self._stopped.set()
        self.join()
        return [attrs.evolve(kill, attempts=self._lost(kill)) for kill in self.kills]

    def _lost(self, kill: Kill) -> frozenset[int]:
        return kill.attempts & unfinished(list_version(self._storage, kill.version))


def unfinished(listing: VersionListing) -> frozenset[int]:
    """The task attempts that began a version and have not committed it."""
    began = {made.by.attempt_id for made in listing.objects}
    return frozenset(began - {made.by.attempt_id for made in listing.manifests})


def workers(jvm_pid: int) -> Iterator[int]:
    """The Python workers of a JVM: the children of the daemon that is its child."""
    parents = dict(_processes())
    daemons = {pid for pid, parent in parents.items() if parent == jvm_pid}
    return (pid for pid, parent in parents.items() if parent in daemons)


def _processes() -> Iterator[tuple[int, int]]:
    """Process ids of all processes, each with its parent's."""
    if Path("/proc/self/stat").exists():
        for entry in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = entry.read_text(errors="replace").rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            yield int(entry.parent.name), int(fields[1])
        return
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="],  # noqa: S607 - it is in different places
        check=True,
        capture_output=True,
        text=True,
    )
    for line in listed.stdout.splitlines():
        pid, parent = line.split()
        yield int(pid), int(parent)
