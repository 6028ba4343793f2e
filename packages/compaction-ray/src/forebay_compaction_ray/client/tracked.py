"""A job as the process that submitted it, or asked about it, knows it."""

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
    """How a job stands. Written by one errand at a time, read by anyone."""

    def __init__(self, job_id: str, job: CompactionJob | None) -> None:
        """``job`` is ``None`` for one that another process submitted."""
        self.id: Final = job_id
        self.job: Final = job
        self.stop: Final = threading.Event()
        """Set when nobody here follows the job any more."""
        self.unwanted = False
        """Nobody anywhere wants it any more."""
        self.address = ""
        """The gateway that has it; empty before one has, and for good if it is done here."""
        self.forgotten = False
        """The gateway was told to forget it when it said that it is done."""
        self.local = False
        """Given to the local service."""
        self.verified = False
        """Its outputs were read as the settings ask for, and are sound."""
        self.gave_up_s: float | None = None
        """When it was failed because no gateway did it."""
        self.asked = threading.Event()
        """A gateway, or all of them, have been asked at least once."""
        self.nowhere: Final = threading.Event()
        """No gateway knows of it."""
        self._changed: Final = threading.Condition()
        first = CompactionPhase.UNKNOWN if job is None else CompactionPhase.QUEUED
        self._status = CompactionStatus(job_id, first)

    @property
    def status(self) -> CompactionStatus:
        """As it stands."""
        return self._status

    def wait(self, timeout_s: float) -> CompactionStatus:
        """As it stands when it has ended, or after ``timeout_s``."""
        with self._changed:
            self._changed.wait_for(self._is_settled, timeout_s)
            return self._status

    def _is_settled(self) -> bool:
        unknown = self._status.phase is CompactionPhase.UNKNOWN
        return self.local or self.nowhere.is_set() or (self._status.phase.ended and not unknown)

    def wake(self) -> None:
        """All there is to learn from gateways has been learnt."""
        self.asked.set()
        with self._changed:
            self._changed.notify_all()

    def set(
        self,
        phase: CompactionPhase,
        fault: CompactionFault | None = None,
        message: str = "",
    ) -> None:
        """Say how it stands; what has ended stays so."""
        with self._changed:
            ended = self._status.phase.ended and self._status.phase is not CompactionPhase.UNKNOWN
            if not ended:
                self._status = CompactionStatus(self.id, phase, fault, message)
            self._changed.notify_all()

    def drop(self) -> None:
        """Nobody wants it any more."""
        self.unwanted = True
        self.stop.set()

    def turn_local(self) -> None:
        """From now on the local service knows how it stands."""
        with self._changed:
            self.local = True
            self._changed.notify_all()
