"""CPU seconds of process trees, sampled from /proc while something runs (Linux)."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
INTERVAL_S: Final = 0.5


class CpuOfTrees:
    """Samples what each of several process trees has used, until its block ends.

    ``samples`` are (seconds since the beginning, name → CPU seconds until then). What a process
    used between its last sample and its end is missing, half a second at most for each.
    """

    def __init__(self, roots: Mapping[str, int]) -> None:
        """``roots``: a name for each tree, and the process at its top."""
        self.samples: list[tuple[float, dict[str, float]]] = []
        self._roots: Final = dict(roots)
        self._seen: Final[dict[str, dict[tuple[int, int], float]]] = {n: {} for n in roots}
        self._stop: Final = threading.Event()
        self._thread: Final = threading.Thread(target=self._sample, daemon=True)

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

    def total(self, name: str) -> float:
        """CPU seconds of one tree between the first sample and the last one."""
        if not self.samples:
            return 0.0
        return self.samples[-1][1][name] - self.samples[0][1][name]

    def _sample(self) -> None:
        began_s = time.monotonic()
        while True:
            processes = _processes()
            for name, root in self._roots.items():
                for pid in _tree(processes, root):
                    _, started, cpu_s = processes[pid]
                    self._seen[name][pid, started] = cpu_s
            now = {name: sum(seen.values()) for name, seen in self._seen.items()}
            self.samples.append((time.monotonic() - began_s, now))
            if self._stop.wait(INTERVAL_S):
                return


def _processes() -> dict[int, tuple[int, int, float]]:
    """Process → parent, when it was started, CPU seconds."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            cpu_s = (int(fields[11]) + int(fields[12])) / TICKS_PER_S
            found[int(entry.name)] = (int(fields[1]), int(fields[19]), cpu_s)
    return found


def _tree(processes: Mapping[int, tuple[int, int, float]], root: int) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, (parent, _, _) in processes.items():
        children.setdefault(parent, []).append(pid)
    tree, new = set(), [root]
    while new:
        pid = new.pop()
        if pid in processes and pid not in tree:
            tree.add(pid)
            new += children.get(pid, [])
    return tree
