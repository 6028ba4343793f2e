"""Processes as /proc shows them (Linux), and a thread that samples them during a measurement."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self


class Process(NamedTuple):
    """One process; times are in ticks."""

    parent: int
    began: int
    used: int


def processes() -> dict[int, Process]:
    """Return the running processes, by process id."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # it has just ended
            continue
        fields = stat.rpartition(")")[2].split()
        used = int(fields[11]) + int(fields[12])
        found[int(entry.name)] = Process(int(fields[1]), int(fields[19]), used)
    return found


def tree_of(root: int, running: Mapping[int, Process]) -> set[int]:
    """Return the running processes among a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for pid, process in running.items():
        children.setdefault(process.parent, []).append(pid)
    tree, unseen = set(), [root]
    while unseen:
        pid = unseen.pop()
        if pid in running and pid not in tree:
            tree.add(pid)
            unseen += children.get(pid, [])
    return tree


def cpu_s_of_tree() -> float:
    """Return the CPU time of this process and its descendants that run."""
    spent = 0.0
    for pid in tree_of(os.getpid(), processes()):
        with contextlib.suppress(OSError):  # it has just ended
            # The clock of another process, as clock_getcpuclockid() computes its number.
            spent += time.clock_gettime(~pid << 3 | 2)
    return spent


class Sampler:
    """Calls `sample` on a separate thread while its block runs."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self.sample, daemon=True)

    def sample(self) -> None:
        """Sample repeatedly until `ended_within` returns true."""
        raise NotImplementedError

    def ended_within(self, seconds: float) -> bool:
        """Wait; return whether the block ended in the meantime."""
        return self._stop.wait(seconds)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
