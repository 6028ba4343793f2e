"""``--kill``: ends Spark's Python workers by SIGKILL while they are making a version."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterable, Iterator, Sequence
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
    """Kills the workers of one JVM while they make some of the versions.

    Where a kill comes too late to hit anything, it is tried again with the version after it.
    """

    def __init__(self, storage: ObjectStorage, jvm_pid: int, versions: Sequence[int]) -> None:
        super().__init__(name="forebay-demo-killer", daemon=True)
        self._storage = storage
        self._jvm_pid = jvm_pid
        self._versions = list(versions)
        self._stopped = threading.Event()
        self._kills: list[Kill] = []

    def run(self) -> None:
        """Take each version in turn."""
        killed_at = 0
        for wanted in self._versions:
            version = max(wanted, killed_at + 1)
            while not self._stopped.is_set() and not self._hit(version):
                version += 1
            killed_at = version

    def _hit(self, version: int) -> bool:
        """Wait until a version is being made, and kill; whether that ended an attempt."""
        while not self._stopped.wait(_LOOK_S):
            if unfinished(list_version(self._storage, version)):
                self._stopped.wait(_INTO_S)
                pids = list(workers(self._jvm_pid))
                end(pids)
                lost = unfinished(list_version(self._storage, version))
                if lost:
                    self._kills.append(Kill(version, pids, lost))
                return bool(lost)
        return False

    def stop(self) -> list[Kill]:
        """End; the kills by which attempts were really lost, with these attempts."""
        self._stopped.set()
        self.join()
        kills = [attrs.evolve(kill, attempts=self._lost(kill)) for kill in self._kills]
        return [kill for kill in kills if kill.attempts]

    def _lost(self, kill: Kill) -> frozenset[int]:
        return kill.attempts & unfinished(list_version(self._storage, kill.version))


def end(pids: Iterable[int]) -> None:
    """``kill -9``; processes that have ended meanwhile are left out."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.kill(pid, signal.SIGKILL)


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
            except (FileNotFoundError, ProcessLookupError):  # it has just ended
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
