"""Whether somebody else used the machine while a run was measured (Linux; elsewhere unknown)."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

INTERVAL_S = 1.0


class ForeignLoad:
    """Samples, while its block runs, the processor time that was not our process tree's.

    ``cores`` is the mean number of cores that others kept busy, or ``None`` where /proc is absent.
    """

    cores: float | None = None

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        if Path("/proc/stat").exists():
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _sample(self) -> None:
        started = time.monotonic()
        busy, own, foreign = _busy_ticks(), _own_ticks(), 0
        while not self._stop.wait(INTERVAL_S):
            busy_now, own_now = _busy_ticks(), _own_ticks()
            # A process that ended takes its time along, so only those seen twice are counted.
            ours = sum(ticks - own.get(pid, 0) for pid, ticks in own_now.items())
            foreign += max(0, busy_now - busy - ours)
            busy, own = busy_now, own_now
            elapsed_s = time.monotonic() - started
            self.cores = foreign / os.sysconf("SC_CLK_TCK") / elapsed_s


def _busy_ticks() -> int:
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    idle, waiting_for_disk = fields[3], fields[4]
    return sum(fields[:8]) - idle - waiting_for_disk


def _own_ticks() -> dict[int, int]:
    """Processor time of this process and all its descendants, by process id."""
    ticks: dict[int, int] = {}
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has just ended
                continue
            ticks[int(entry.name)] = int(stat[11]) + int(stat[12])
            children.setdefault(int(stat[1]), []).append(int(entry.name))
    own, todo = {}, [os.getpid()]
    while todo:
        pid = todo.pop()
        own[pid] = ticks.get(pid, 0)
        todo.extend(children.get(pid, ()))
    return own
