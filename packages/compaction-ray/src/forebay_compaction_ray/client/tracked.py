"""Tracks a job in a process that submitted it or asked about it."""

from __future__ import annotations

import threading
from typing import Final

from forebay_state_api.contract.compaction_job import CompactionJob
from forebay_state_api.contract.compaction_service import (
    CompactionFault,
    CompactionPhase,
    CompactionStatus,
)


class TrackedJob:
    """The state of a job. Written by one follower at a time, read by any thread."""

    def __init__(self, job_id: str, job: CompactionJob | None) -> None:
        """``job`` is ``None`` if another process submitted it."""
        self.id: Final = job_id
        self.job: Final = job
        self.stop: Final = threading.Event()
        """Set when this process no longer follows the job."""
        self.unwanted = False
        """Whether nobody needs the job any more."""
        self.address = ""
        """The gateway that has it; empty until one has, and always if it runs here."""
        self.forgotten = False
        """Whether the gateway released it when it reported it done."""
        self.local = False
        """Whether the local service has it."""
        self.verified = False
        """Whether its outputs were read, as configured, and are intact."""
        self.gave_up_s: float | None = None
        """When it failed because no gateway took it."""
        self.asked = threading.Event()
        """Set when a gateway, or all of them, have been asked at least once."""
        self.nowhere: Final = threading.Event()
        """Set when no gateway knows it."""
        self._changed: Final = threading.Condition()
        first = CompactionPhase.UNKNOWN if job is None else CompactionPhase.QUEUED
        self._status = CompactionStatus(job_id, first)

    @property
    def status(self) -> CompactionStatus:
        """The current status."""
        return self._status

    def wait(self, timeout_s: float) -> CompactionStatus:
        """Wait for the end, at most ``timeout_s`` seconds; return the status."""
        with self._changed:
            self._changed.wait_for(self._is_settled, timeout_s)
            return self._status

    def _is_settled(self) -> bool:
        unknown = self._status.phase is CompactionPhase.UNKNOWN
        return self.local or self.nowhere.is_set() or (self._status.phase.ended and not unknown)

    def wake(self) -> None:
        """Wake waiting threads: gateways have given all the information they have."""
        self.asked.set()
        with self._changed:
            self._changed.notify_all()

    def set(
        self,
        phase: CompactionPhase,
        fault: CompactionFault | None = None,
        message: str = "",
    ) -> None:
        """Set the status; a job that has ended keeps its status."""
        with self._changed:
            ended = self._status.phase.ended and self._status.phase is not CompactionPhase.UNKNOWN
            if not ended:
                self._status = CompactionStatus(self.id, phase, fault, message)
            self._changed.notify_all()

    def drop(self) -> None:
        """Mark the job as no longer needed."""
        self.unwanted = True
        self.stop.set()

    def turn_local(self) -> None:
        """Hand the job over to the local service, which tracks it from now on."""
        with self._changed:
            self.local = True
            self._changed.notify_all()
