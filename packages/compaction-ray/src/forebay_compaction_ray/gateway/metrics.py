"""Counters and gauges, and their text format for Prometheus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from forebay_compaction_ray.events import Labels, shown

PREFIX: Final = "forebay_compaction_"

HELP: Final = {
    "jobs_submitted_total": "Jobs taken.",
    "jobs_finished_total": "Jobs ended, by outcome.",
    "jobs_rejected_total": "Jobs refused, by reason: `queue_full`, `client_full`, `draining`, "
    "`no_storage` and `no_other_worker` are temporary; other reasons mean that the client is "
    "incompatible or misconfigured.",
    "jobs_lost_total": "Jobs whose worker is gone, by cause: it `died`, was `silent`, `stalled`, "
    "did not `abort`, or was `removed`.",
    "aborts_total": "Jobs that were asked to stop, by cause.",
    "queue_depth": "Waiting jobs.",
    "queue_seconds_total": "Seconds that jobs have waited.",
    "run_seconds_total": "Seconds that jobs have run.",
    "cpu_seconds_total": "CPU seconds of jobs.",
    "bytes_in_total": "Bytes that jobs have read.",
    "bytes_out_total": "Bytes that jobs have written.",
    "entries_in_total": "Entries that jobs have read.",
    "entries_dropped_total": "Entries that jobs have dropped, by cause: `overwritten`, also by a "
    "deletion, or joined to others; deletions with nothing older to hide (`deleted`); `expired`; "
    "`untold` if the format's compactor does not report causes.",
    "client_events_total": "Events that clients report of their jobs, by event.",
    "client_fallbacks_total": "Jobs that clients compacted in their own process, by cause.",
    "workers": "Workers, by state.",
    "worker_restarts_total": "Workers that died or were killed.",
}
"""Name without prefix → meaning."""

DROPPED: Final = ("overwritten", "deleted", "expired")
"""Causes for which compactors drop entries; ``untold`` counts those without a reported cause."""


class Metrics:
    """The numbers of one gateway. Used from one thread."""

    def __init__(self) -> None:
        self.values: Final[dict[tuple[str, Labels], float]] = {}
        """Name and labels → number."""

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Increase a counter."""
        key = self._key(name, labels)
        self.values[key] = self.values.get(key, 0.0) + amount

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self.values[self._key(name, labels)] = value

    def value(self, name: str, **labels: str) -> float:
        """Return the current number; 0 if it is not set yet."""
        return self.values.get(self._key(name, labels), 0.0)

    def to_plain(self) -> dict[str, float]:
        """Return name with labels, as Prometheus writes it → number."""
        return {shown(name, labels): v for (name, labels), v in sorted(self.values.items())}

    def to_text(self) -> str:
        """Return the numbers in Prometheus' text format."""
        lines: list[str] = []
        described = ""
        for (name, labels), value in sorted(self.values.items()):
            if name != described:
                kind = "counter" if name.endswith("_total") else "gauge"
                lines += [f"# HELP {PREFIX}{name} {HELP[name]}", f"# TYPE {PREFIX}{name} {kind}"]
                described = name
            lines.append(f"{PREFIX}{shown(name, labels)} {value:g}")
        return "\n".join([*lines, ""])

    @staticmethod
    def _key(name: str, labels: Mapping[str, str]) -> tuple[str, Labels]:
        if name not in HELP:
            raise KeyError(name)
        return name, tuple(sorted(labels.items()))
