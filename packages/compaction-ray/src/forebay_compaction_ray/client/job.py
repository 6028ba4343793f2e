"""A job in a process that submitted it or asked about it: its state, and what is known about it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from forebay_compaction_ray.client.lifecycle import Event, State, next_state
from forebay_state_api.contract.compaction_job import CompactionJob
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionStatus


class TrackedJob:
    """The state of a job. Its thread moves it on; any thread may read it or end it."""

    def __init__(self, job_id: str, job: CompactionJob | None, now_s: float) -> None:
        """``job`` is ``None`` if another process submitted it."""
        self.id: Final = job_id
        self.job: Final = job
        self.submitted_s: Final = now_s
        self.idle_since_s = now_s
        """When it was submitted, or a worker last had it."""
        self.address = ""
        """The gateway that has it, or had it."""
        self.tries = 0 if job is None else job.attempt - 1
        """How often it was begun and not done, in whatever process."""
        self.judges: dict[str, CompactionFault | None] = {}
        """Workers that have not done it, with the fault that each reported."""
        self.state = State.ASKED if job is None else State.OFFERED
        self.status = CompactionStatus(job_id, self.state.phase)
        """The status that its owner sees."""
        self._changed: Final = threading.Condition()

    def advance(
        self, event: Event, fault: CompactionFault | None = None, message: str = ""
    ) -> None:
        """Move on to the next state; the first end is the last state."""
        with self._changed:
            if not self.state.ended:
                self.state = next_state(self.state, event)
                self.status = CompactionStatus(self.id, self.state.phase, fault, message)
            self._changed.notify_all()

    def wait(self, until: Callable[[State], bool], timeout_s: float) -> State:
        """Wait for a state, at most ``timeout_s`` seconds; return the present one."""
        with self._changed:
            self._changed.wait_for(lambda: until(self.state), timeout_s)
            return self.state
