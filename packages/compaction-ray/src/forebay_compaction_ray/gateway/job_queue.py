"""The jobs that wait at a gateway, in order of arrival."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from forebay_compaction_ray.gateway.workers import Demand, GatewayJob


class JobQueue:
    """Waiting jobs. Adding and removing one takes the same time however many wait.

    Jobs that demand the same of a worker wait in one line, of which only the first is looked at.
    """

    def __init__(self) -> None:
        self._lines: Final[dict[Demand, OrderedDict[str, GatewayJob]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def add(self, entry: GatewayJob) -> None:
        """Append a job."""
        self._lines.setdefault(entry.demand, OrderedDict())[entry.id] = entry

    def remove(self, entry: GatewayJob) -> None:
        """Take a job out."""
        line = self._lines[entry.demand]
        del line[entry.id]
        if not line:
            del self._lines[entry.demand]

    def heads(self) -> Iterator[GatewayJob]:
        """Return the first job of each line, the earliest first."""
        firsts = (next(iter(line.values())) for line in self._lines.values())
        return iter(sorted(firsts, key=lambda entry: entry.submitted_s))
