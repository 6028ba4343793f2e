"""Follows one job: to a gateway, through its queue, to its end, or back to this process.

A job is sent only once under its id. If it is unknown whether it arrived, or how it ended, it
counts as lost: its owner submits it again, under another id and prefix, so that no two workers ever
write to the same prefix. A job runs locally unchanged only if it certainly never began anywhere.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs

from forebay_compaction_ray.client.counts import Counts
from forebay_compaction_ray.client.gateway import Gateway, UnreachableError
from forebay_compaction_ray.client.tracked import TrackedJob
from forebay_compaction_ray.messages import JobView, Submission
from forebay_compaction_ray.options import RemoteOptions
from forebay_compaction_ray.protocol import RefusedError
from forebay_state_api.contract.compaction_job import CompactionJob
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionPhase

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0
_POLL_S: Final = 10.0
"""Duration of a long poll, the longest that a submission waits for a thread to be free."""
_SHORT_S: Final = 0.2
"""A job that is done within this time needs a single call."""
_SILENCE_S: Final = 10.0
"""A gateway that has the job and does not answer for this long is given up."""


@attrs.frozen
class Given:
    """The job is at a gateway."""

    gateway: Gateway
    view: JobView


@attrs.frozen
class NotGiven:
    """Certainly no gateway took the job."""

    why: str
    cause: str
    """The cause as in `EVENTS`, after ``fallbacks:``."""


@attrs.frozen
class NoEndpoint:
    """All gateways were removed: an operator wants jobs to run in their own processes."""


@attrs.frozen
class Lost:
    """The outcome of the job is unknown."""

    why: str


@attrs.frozen
class Failed:
    """The job failed, and would fail again."""

    fault: CompactionFault
    why: str


Ending = NotGiven | NoEndpoint | Lost | Failed | None
"""How following a job ended; ``None``: see the job's status."""


@attrs.frozen
class _Round:
    """A round in which no gateway took the job."""

    why: str
    cause: str
    busy_s: float
    """Seconds after which a full gateway may be asked again; 0 if no gateway is full."""


class JobFollower:
    """Follows one job to its end. Blocks; runs on its own thread."""

    def __init__(
        self,
        tracked: TrackedJob,
        options: RemoteOptions,
        gateways: Callable[[], Sequence[Gateway]],
        client: str,
        counts: Counts,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``gateways`` returns the effective gateways, in the order in which to try them."""
        self._tracked: Final = tracked
        self._options: Final = options
        self._gateways: Final = gateways
        self._client: Final = client
        self._counts: Final = counts
        self._clock: Final = clock
        self._began_s: Final = clock()

    def run(self, job: CompactionJob) -> Ending:
        """Submit a job and follow it to its end."""
        given = self._place(job)
        if not isinstance(given, Given):
            return given
        return self.follow(given.gateway, given.view)

    def find(self) -> Given | None:
        """Ask all gateways for a job that another process submitted; start nothing."""
        for gateway in self._gateways():
            if not gateway.breaker.allows():
                continue
            try:
                view = gateway.poll(self._tracked.id)
            except (UnreachableError, RefusedError) as error:
                _log.info("%s", error)
                continue
            if view.phase is not CompactionPhase.UNKNOWN:
                self._show(view)
                return Given(gateway, view)
        return None

    # -- to a gateway -------------------------------------------------------------------------

    def _place(self, job: CompactionJob) -> Given | NotGiven | NoEndpoint | Lost | Failed:
        """Offer the job to one gateway after the other, in rounds with pauses in between."""
        submission = Submission(job=job, storage=self._options.storage, client=self._client)
        why, cause, rounds, pause_s = "", "", 0, _FIRST_PAUSE_S
        while rounds <= self._options.request_retries:
            found = self._round(submission)
            if not isinstance(found, _Round):
                return found
            why, cause = found.why, found.cause
            if not found.busy_s:
                rounds += 1
            elif self._clock() - self._began_s + found.busy_s > self._options.queue_timeout_s:
                break
            if self._tracked.stop.wait((found.busy_s or pause_s) * random.uniform(0.5, 1.0)):
                break
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)
        return NotGiven(why, cause)

    def _round(self, submission: Submission) -> Given | NoEndpoint | Lost | Failed | _Round:
        why, cause, busy_s = "", "unreachable", 0.0
        if not (gateways := self._gateways()):
            return NoEndpoint()
        for gateway in gateways:
            if not gateway.breaker.allows():
                why = f"the gateway {gateway.address} has not answered lately"
                continue
            try:
                return self._try(gateway, submission)
            except UnreachableError as error:
                why = str(error)
            except RefusedError as refused:
                why = f"{gateway.address}: {refused}"
                if refused.fault is not CompactionFault.TRANSIENT:
                    return Failed(refused.fault, why)
                cause = "refused"
                busy_s = max(busy_s, refused.retry_after_s)
        return _Round(why, cause, busy_s)

    def _try(self, gateway: Gateway, submission: Submission) -> Given | Lost:
        hello = self._greet(gateway)  # fails before anything is sent that could start a job
        if hello.get("state") != "serving":
            raise RefusedError(CompactionFault.TRANSIENT, "draining", "it takes no more jobs")
        try:
            view = gateway.submit(submission, _SHORT_S, forget=True)
        except UnreachableError as error:
            return Lost(f"it may or may not have been taken: {error}")
        self._tracked.address = gateway.address
        return Given(gateway, view)

    def _greet(self, gateway: Gateway) -> dict[str, Any]:
        """Get a gateway's description, and report the events that no gateway has received yet."""
        unsent = self._counts.take()
        try:
            return gateway.hello(unsent)
        except UnreachableError:
            self._counts.give_back(unsent)
            self._counts.add("unreachable")
            raise
        except RefusedError:
            self._counts.give_back(unsent)
            self._counts.add("refused")
            raise

    # -- at a gateway -------------------------------------------------------------------------

    def follow(self, gateway: Gateway, view: JobView) -> Ending:
        """Poll a gateway until the job has ended; give up at a timeout."""
        boot, heard_s = view.boot, self._clock()
        while not view.phase.ended:
            if view.boot != boot:
                break
            self._show(view)
            if (ending := self._too_long(gateway, view)) is not None:
                return ending
            if self._tracked.stop.is_set():
                if self._tracked.unwanted:
                    self._leave(gateway)
                return None
            try:
                view = gateway.poll(self._tracked.id, self._wait_s(), forget=self._is_own)
                heard_s = self._clock()
            except RefusedError as refused:
                return Failed(refused.fault, f"{gateway.address}: {refused}")
            except UnreachableError as error:
                if self._clock() - heard_s >= _SILENCE_S:
                    return Lost(str(error))
                self._tracked.stop.wait(_FIRST_PAUSE_S)
        return self._ended(gateway, view)

    @property
    def _is_own(self) -> bool:
        """Return whether this process submitted the job; otherwise another may ask about it."""
        return self._tracked.job is not None

    def _wait_s(self) -> float:
        left_s = self._options.request_timeout_s - (self._clock() - self._began_s)
        return max(0.0, min(_POLL_S, self._options.queue_timeout_s, left_s))

    def _too_long(self, gateway: Gateway, view: JobView) -> Ending:
        waited_s, options = self._clock() - self._began_s, self._options
        queued = view.phase is CompactionPhase.QUEUED
        if queued and waited_s >= options.queue_timeout_s:
            why = f"it waited {waited_s:.0f} s in the queue of {gateway.address}"
        elif waited_s >= options.request_timeout_s:
            why = f"it was not done after {waited_s:.0f} s at {gateway.address}"
        else:
            return None
        last = self._leave(gateway)
        if last is not None and last.phase is CompactionPhase.ABORTED and not last.started:
            return NotGiven(why, "queue")
        return Lost(why)

    def _leave(self, gateway: Gateway) -> JobView | None:
        try:
            return gateway.abort(self._tracked.id)
        except (UnreachableError, RefusedError) as error:
            _log.info("job %s could not be aborted: %s", self._tracked.id, error)
            return None

    def _ended(self, gateway: Gateway, view: JobView) -> Ending:
        phase, where = view.phase, f"at {gateway.address}"
        if phase is CompactionPhase.FAILED and view.fault is not CompactionFault.TRANSIENT:
            return Failed(view.fault or CompactionFault.PERMANENT, f"{view.message} ({where})")
        if phase is CompactionPhase.DONE:
            self._tracked.address = gateway.address
            self._tracked.forgotten = self._is_own
            return None
        if phase is CompactionPhase.ABORTED and self._tracked.stop.is_set():
            return None
        if phase is CompactionPhase.UNKNOWN or not phase.ended:
            return Lost(f"the gateway {gateway.address} has restarted, or forgotten it")
        return Lost(f"{phase.value} {where}: {view.message}")

    def _show(self, view: JobView) -> None:
        if view.phase in (CompactionPhase.QUEUED, CompactionPhase.RUNNING):
            self._tracked.set(view.phase)
