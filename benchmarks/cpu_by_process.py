"""CPU seconds of process trees, sampled from /proc during a measurement (Linux)."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Final

from benchmarks.processes import Sampler, processes, tree_of

TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
INTERVAL_S: Final = 0.5


class CpuOfTrees(Sampler):
    """Samples the CPU time of several process trees until its block ends.

    ``samples`` are (seconds since the beginning, name → CPU seconds until then). The CPU time of a
    process between its last sample and its end is missing, at most half a second for each process.
    """

    def __init__(self, roots: Mapping[str, int]) -> None:
        """Take the trees in ``roots``: the name of each, and its root process."""
        super().__init__()
        self.samples: list[tuple[float, dict[str, float]]] = []
        self._roots: Final = dict(roots)
        self._seen: Final[dict[str, dict[tuple[int, int], float]]] = {n: {} for n in roots}

    def total(self, name: str) -> float:
        """Return the CPU seconds of one tree between the first sample and the last one."""
        if not self.samples:
            return 0.0
        return self.samples[-1][1][name] - self.samples[0][1][name]

    def sample(self) -> None:
        """Add to ``samples``, at least once."""
        began_s = time.monotonic()
        while True:
            running = processes()
            for name, root in self._roots.items():
                for pid in tree_of(root, running):
                    process = running[pid]
                    self._seen[name][pid, process.began] = process.used / TICKS_PER_S
            now = {name: sum(seen.values()) for name, seen in self._seen.items()}
            self.samples.append((time.monotonic() - began_s, now))
            if self.ended_within(INTERVAL_S):
                return
