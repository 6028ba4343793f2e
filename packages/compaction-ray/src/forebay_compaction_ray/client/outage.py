"""Records since when no job of this process has reached a worker."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Final

import attrs

from forebay_compaction_ray.client.lifecycle import Trouble, TroubleKind
from forebay_compaction_ray.options import KEYS, RemoteOptions
from forebay_state_api.contract.compaction_service import ServiceOutage

_DOCTOR: Final = "`forebay compaction doctor` examines the gateway and its workers"
_CURES: Final = {
    "unreachable": (
        "Start a gateway there, or name one that runs: with `forebay compaction endpoints add`, or "
        f"in {KEYS}address"
    ),
    "refused": _DOCTOR,
    "storage": _DOCTOR,
    "queue": "`forebay compaction status` shows the workers, and `scale` orders more",
}
"""Cause of a trouble that every job would meet → what to do."""
_MEANWHILE: Final = {
    True: "Compactions run in the job's own processes meanwhile",
    False: (
        f"With {KEYS}request.failure-strategy=fail, a compaction that waits for longer than "
        "queue-timeout stops the query"
    ),
}
"""Whether jobs fall back → how they are handled, for messages."""


class Outage:
    """The present outage, if there is one. Thread-safe."""

    def __init__(self, options: RemoteOptions) -> None:
        """Begin without an outage."""
        self._meanwhile: Final = _MEANWHILE[options.fall_back]
        self._lock: Final = threading.Lock()
        self._present: ServiceOutage | None = None

    @property
    def present(self) -> ServiceOutage | None:
        """The outage, with the trouble of the last job."""
        return self._present

    def note(self, trouble: Trouble) -> bool:
        """Record why a job reached no worker; return whether this concerns all jobs."""
        cure = _CURES.get(trouble.cause)
        if cure is None or trouble.kind is TroubleKind.BUSY:
            return False
        why = f"{trouble.why.rstrip('.')}. {self._meanwhile}. {cure}"
        with self._lock:
            if self._present is None:
                self._present = ServiceOutage(since=datetime.now(UTC), why=why)
            else:
                self._present = attrs.evolve(self._present, why=why)
        return True

    def end(self) -> None:
        """End the outage: a worker has a job, or has done it."""
        with self._lock:
            self._present = None
