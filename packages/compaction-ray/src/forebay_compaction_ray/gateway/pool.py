"""What the gateway needs of its workers; Ray actors are one way to have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from forebay_compaction_ray.messages import Outcome, Pulse, Submission, WorkerInfo
from forebay_state_api.errors import ForebayError


class WorkerLostError(ForebayError):
    """The worker died, or its node, or nobody knows; what it was asked may or may not happen.

    Operator action: none if it stays with one; see the logs of the worker if not.
    """


class WorkerHandle(Protocol):
    """One worker. Calls may be made at once, from the loop of the gateway.

    Every call raises `WorkerLostError` when the worker has died; a worker that was not killed for
    good comes back by itself, as another life of the same handle.
    """

    async def describe(self) -> WorkerInfo:
        """Return once the worker is up."""

    async def run(self, submission: Submission) -> Outcome:
        """Do a job; may take long."""

    async def ping(self) -> Pulse:
        """Answer at once, also while a job runs."""

    async def abort(self, job_id: str) -> None:
        """Ask a job to stop; also before it has begun."""

    async def check(self, storage: str) -> Mapping[str, str]:
        """Probe a storage: what it promises → what was found wrong with that, empty for nothing."""

    def kill(self, *, restart: bool) -> None:
        """End the process at once."""


class Pool(Protocol):
    """Where workers come from."""

    def start(self) -> WorkerHandle:
        """Begin a worker; it may take any time, or for ever where nothing is free for it."""
