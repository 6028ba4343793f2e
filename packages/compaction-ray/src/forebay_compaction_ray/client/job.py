"""A job in a process that submitted it or asked about it: its state, and what is known about it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from forebay_compaction_ray.client.lifecycle import Event, State, Trouble, next_state
from forebay_state_api.contract.compaction_job import CompactionJob
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionStatus


class TrackedJob:
    """The state of a job. Its thread moves it on; any thread may read it or end it."""

    def __init__(
        self,
        job_id: str,
        job: CompactionJob | None,
        state: State,
        now_s: float,
        trouble: Trouble | None = None,
    ) -> None:
        """``job`` is ``None`` if another process submitted it; ``trouble`` if it is `TROUBLED`."""
        self.id: Final = job_id
        self.job: Final = job
        self.submitted_s: Final = now_s
        self.idle_since_s = self.submitted_s
        """When it was submitted, or a worker last had it."""
        self.address = ""
        """The gateway that has it, or had it."""
        self.tries = 0 if job is None else job.attempt - 1
        """How often it was begun and not done, in whatever process."""
        self.judges: dict[str, CompactionFault | None] = {}
        """Workers that have not done it; with their fault if they say that nobody can."""
        self.trouble = trouble
        """Why nobody has it."""
        self._state = state
        self._status = CompactionStatus(job_id, state.phase)
        self._changed: Final = threading.Condition()

    @property
    def state(self) -> State:
        """The current state."""
        return self._state

    @property
    def status(self) -> CompactionStatus:
        """The status that its owner sees."""
        return self._status

    def advance(
        self, event: Event, fault: CompactionFault | None = None, message: str = ""
    ) -> State:
        """Move on to the next state, and return it; the first end is the last state."""
        with self._changed:
            if not self._state.ended:
                self._state = next_state(self._state, event)
                self._status = CompactionStatus(self.id, self._state.phase, fault, message)
            self._changed.notify_all()
            return self._state

    def wait(self, until: Callable[[State], bool], timeout_s: float) -> State:
        """Wait for a state, at most ``timeout_s`` seconds; return the present one."""
        with self._changed:
            self._changed.wait_for(lambda: until(self._state), timeout_s)
            return self._state
