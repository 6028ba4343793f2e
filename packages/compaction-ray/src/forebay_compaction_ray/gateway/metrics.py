"""Counters and gauges, and how Prometheus reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from forebay_compaction_ray.events import Labels, shown

PREFIX: Final = "forebay_compaction_"

HELP: Final = {
    "jobs_submitted_total": "Jobs taken.",
    "jobs_finished_total": "Jobs ended, by outcome.",
    "jobs_rejected_total": "Jobs refused, by reason: `queue_full`, `client_full` and `draining` "
    "pass, others are of a client that does not fit.",
    "jobs_lost_total": "Jobs whose worker is gone, by cause: it `died`, was `silent`, `stalled`, "
    "did not `abort`, or was `removed`.",
    "aborts_total": "Jobs that someone asked to stop, by cause.",
    "queue_depth": "Jobs that wait.",
    "queue_seconds_total": "Seconds that jobs have waited.",
    "run_seconds_total": "Seconds that jobs have run.",
    "cpu_seconds_total": "CPU seconds of jobs.",
    "bytes_in_total": "Bytes that jobs have read.",
    "bytes_out_total": "Bytes that jobs have written.",
    "entries_in_total": "Entries that jobs have read.",
    "entries_dropped_total": "Entries that jobs have left out, by why: `overwritten`, also by a "
    "deletion, or joined to others; deletions with nothing left below them (`deleted`); `expired`; "
    "`untold` by the compactor of a format that does not say.",
    "client_events_total": "What clients tell of their jobs, by event.",
    "client_fallbacks_total": "Jobs that clients compacted in the process after all, by cause.",
    "workers": "Workers, by state.",
    "worker_restarts_total": "Workers that died or were killed.",
}
"""Name without prefix → what it says."""

DROPPED: Final = ("overwritten", "deleted", "expired")
"""Why compactors leave entries out; what they do not tell is ``untold``."""


class Metrics:
    """The numbers of one gateway. Used from one thread."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, Labels], float] = {}

    def add(self, name: str, amount: float = 1.0, **labels: str) -> None:
        """Let a counter grow."""
        key = self._key(name, labels)
        self._values[key] = self._values.get(key, 0.0) + amount

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._values[self._key(name, labels)] = value

    def value(self, name: str, **labels: str) -> float:
        """The number as it stands; 0 where there is none yet."""
        return self._values.get(self._key(name, labels), 0.0)

    def to_plain(self) -> dict[str, float]:
        """Name with labels, as Prometheus writes it → number."""
        return {shown(name, labels): v for (name, labels), v in sorted(self._values.items())}

    def to_text(self) -> str:
        """The text format of Prometheus."""
        lines: list[str] = []
        described = ""
        for (name, labels), value in sorted(self._values.items()):
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
