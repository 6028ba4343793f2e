"""Detects other load on the machine during a measured run (on Linux only)."""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.processes import Sampler, processes, tree_of

INTERVAL_S = 1.0


class ForeignLoad(Sampler):
    """Samples the processor time of other process trees while its block runs.

    ``cores`` is the mean number of cores that others kept busy, or ``None`` without /proc.
    """

    cores: float | None = None

    def sample(self) -> None:
        """Update ``cores`` until the block ends."""
        if not Path("/proc/stat").exists():
            return
        started = time.monotonic()
        busy, own, foreign = _busy_ticks(), _own_ticks(), 0
        while not self.ended_within(INTERVAL_S):
            busy_now, own_now = _busy_ticks(), _own_ticks()
            # The time of an ended process is lost, so only processes seen twice are counted.
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
    """Return the processor time of this process and its descendants, by process id."""
    running = processes()
    return {pid: running[pid].used for pid in tree_of(os.getpid(), running)}
