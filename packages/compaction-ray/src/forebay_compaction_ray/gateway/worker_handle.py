"""The interface between the gateway and its workers, which Ray actors implement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from forebay_compaction_ray.messages import JobProgress, Outcome, Submission, WorkerInfo
from forebay_state_api.errors import ForebayError


class WorkerLostError(ForebayError):
    """The worker or its node died, or that is unknown; the request may or may not be carried out.

    Operator action: see the logs of the worker if it happens again.
    """


class WorkerHandle(Protocol):
    """One worker's process. The gateway's loop may make concurrent calls.

    Every call raises `WorkerLostError` when the process has exited.
    """

    async def describe(self, marks: Mapping[str, str]) -> WorkerInfo:
        """Return once the worker is up and has looked for the marks of its storages, by name.

        Any error except `WorkerLostError` means that the worker runs, but cannot work.
        """

    async def run(self, submission: Submission) -> Outcome:
        """Run a job; may take long."""

    async def ping(self) -> Mapping[str, JobProgress]:
        """Answer at once, even while a job runs: return the progress of each job, by id."""

    async def abort(self, job_id: str) -> None:
        """Ask a job to stop; it may not have begun yet, and is then not affected."""

    async def check(self, storage: str) -> Mapping[str, str]:
        """Probe a storage: return promise → the problem with it, empty without a problem."""

    def kill(self) -> None:
        """Kill the process, if it has not ended."""
