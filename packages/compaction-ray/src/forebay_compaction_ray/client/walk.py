"""Takes one job from state to state, until it has ended or runs in this process.

Each state in which a job can be acted on has one method here, which acts and returns the event that
`lifecycle.next_state` turns into the next state.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import attrs

from forebay_compaction_ray.client.counts import Counts
from forebay_compaction_ray.client.gateway import Gateway, UnreachableError
from forebay_compaction_ray.client.gateways import Gateways, excess
from forebay_compaction_ray.client.job import TrackedJob
from forebay_compaction_ray.client.lifecycle import (
    Event,
    Kind,
    Patience,
    State,
    Trouble,
    combined,
)
from forebay_compaction_ray.messages import Greeting, JobView, Submission
from forebay_compaction_ray.options import RemoteOptions
from forebay_compaction_ray.protocol import RefusedError
from forebay_state_api.compaction.local_service import LocalCompactionService
from forebay_state_api.contract.compaction_job import CompactionJob
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionPhase
from forebay_state_api.contract.compactor import Compactor, VerifyingCompactor
from forebay_state_api.contract.files import StateFile
from forebay_state_api.contract.object_storage import ObjectNotFoundError, ObjectStorage
from forebay_state_api.errors import CorruptStateError, ForebayError, StorageError

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0
_POLL_S: Final = 10.0
"""Duration of a long poll."""
_QUEUED_POLL_S: Final = 2.0
"""Duration of a poll in a queue, while other gateways might take the job."""
_SILENCE_S: Final = 10.0
"""A gateway that has the job and does not answer for this long is given up."""
_VERDICTS: Final = (CompactionFault.PERMANENT, CompactionFault.CORRUPTION)
_WITHDRAWN: Final = frozenset({"asked", "released"})
"""Codes of a job that its owner withdrew, in another process."""


@attrs.frozen(kw_only=True)
class Surroundings:
    """Everything that the walks of all jobs of a process share."""

    storage: ObjectStorage
    options: RemoteOptions
    gateways: Gateways
    local: LocalCompactionService
    find_compactor: Callable[[str], Compactor]
    counts: Counts
    client: str
    clock: Callable[[], float]
    damaged_s: dict[str, float] = attrs.field(factory=dict)
    """Work, as in `Submission.work` → when its first job with a damaged result was submitted."""

    def read(self, job: CompactionJob, files: Iterable[StateFile]) -> None:
        """Raise `CorruptStateError` for a file that is damaged, if its format allows a check."""
        compactor = self.find_compactor(job.format)
        if isinstance(compactor, VerifyingCompactor):
            here = self.storage.child(job.operator)
            for file in files:
                compactor.verify(file, here)


@attrs.frozen
class Step:
    """An event, with the fault and the message of the job if that is its end."""

    event: Event
    fault: CompactionFault | None = None
    message: str = ""


class Walk:
    """The walk of one job, on the thread that calls `run`."""

    def __init__(self, tracked: TrackedJob, here: Surroundings) -> None:
        """Walk with ``tracked``, from whatever state it is in."""
        self._tracked: Final = tracked
        self._here: Final = here
        self._options: Final = here.options
        self._pause_s = _FIRST_PAUSE_S
        self._silent_since_s: float | None = None
        self._actions: Final[Mapping[State, Callable[[], Step]]] = {
            State.ASKED: self._ask,
            State.OFFERED: self._offer,
            State.QUEUED: self._follow,
            State.RUNNING: self._follow,
            State.JUDGED: self._judge,
            State.WRITTEN: self._verify,
            State.TROUBLED: self._decide,
        }

    def run(self) -> None:
        """Walk until the job has ended, or the local service has it."""
        tracked = self._tracked
        while (act := self._actions.get(tracked.state)) is not None:
            try:
                step = act()
            except Exception as error:  # noqa: BLE001 - a job must end
                step = self._failed(f"the client failed: {error!r}")
            tracked.advance(step.event, step.fault, step.message)
        if tracked.state is State.ABORTED:  # its owner may not have known where it is
            self._here.local.release(tracked.id)
            if tracked.address:
                self._leave()

    # -- to a gateway -------------------------------------------------------------------------

    def _ask(self) -> Step:
        """Ask all gateways for a job that another process submitted; start nothing."""
        for gateway in self._here.gateways.in_turn():
            if not gateway.allows():
                continue
            try:
                view = gateway.poll(self._tracked.id)
            except (UnreachableError, RefusedError) as error:
                _log.info("%s", error)
                continue
            if view.phase is not CompactionPhase.UNKNOWN:
                return self._seen(gateway, view)
        return Step(Event.NOWHERE)

    def _offer(self) -> Step:
        """Offer the job to one gateway after the other.

        First to those with workers that have not failed at it.
        """
        gateways = self._here.gateways
        if self._patience().is_over:
            so_far = self._tracked.trouble or Trouble(Kind.LATE, "it waited for a thread", "queue")
            return self._troubled(attrs.evolve(so_far, kind=Kind.LATE))
        submission = self._submission
        troubles: list[Trouble] = []
        second_choice: list[Gateway] = []
        for gateway in (turn := gateways.in_turn()):
            greeting = self._greet(gateway, submission)
            if isinstance(greeting, Trouble):
                troubles.append(greeting)
                continue
            found = self._submit(gateway, submission) if greeting.workers else None
            if isinstance(found, Step):
                return self._placed(found, troubles)
            if found is None or found.code == "no_other_worker":
                second_choice.append(gateway)
            else:
                troubles.append(found)
        for gateway in second_choice:
            found = self._submit(gateway, attrs.evolve(submission, avoid=()))
            if isinstance(found, Step):
                return self._placed(found, troubles)
            troubles.append(found)
        if not turn:
            return self._troubled(Trouble(Kind.STAYS, "all gateways were removed", "no_endpoint"))
        return self._troubled(combined(troubles))

    def _greet(self, gateway: Gateway, submission: Submission) -> Greeting | Trouble:
        greeting = self._here.gateways.greet(gateway)
        if isinstance(greeting, Greeting) and (above := excess(submission, greeting)):
            why = f"above the limits of {gateway.address}: {above}"
            return Trouble(Kind.NEVER, why, "limits", where=(gateway.address,))
        return greeting

    def _submit(self, gateway: Gateway, submission: Submission) -> Step | Trouble:
        try:
            view = gateway.submit(submission)
        except (RefusedError, UnreachableError) as error:  # it may have arrived: see lifecycle
            return self._here.gateways.trouble(gateway, error)
        return self._seen(gateway, view)

    def _placed(self, step: Step, troubles: Iterable[Trouble]) -> Step:
        """Log what was wrong with the gateways that were asked before, and return the step."""
        for trouble in troubles:
            if trouble.kind is not Kind.BUSY:
                self._here.gateways.warn(trouble.where, trouble.why)
        return step

    # -- at a gateway -------------------------------------------------------------------------

    def _follow(self) -> Step:
        """Ask the gateway that has the job once more."""
        tracked, gateway = self._tracked, self._here.gateways.at(self._tracked.address)
        queued = tracked.state is State.QUEUED
        if (late := self._too_late(queued=queued)) or (queued and self._is_stuck(gateway)):
            self._leave()
            why = f"it {late or 'waits without a worker'} at {gateway.address}"
            return self._troubled(Trouble(Kind.LATE if late else Kind.BUSY, why, "queue"))
        try:
            view = gateway.poll(tracked.id, self._wait_s(queued=queued))
        except RefusedError as refused:
            return self._failed(f"{gateway.address}: {refused}")
        except UnreachableError as error:
            now = self._here.clock()
            if self._silent_since_s is None:
                self._silent_since_s = now
            if now - self._silent_since_s >= _SILENCE_S:
                return self._failed(str(error))
            tracked.wait(lambda state: state.ended, _FIRST_PAUSE_S)
            return Step(Event.QUEUED if queued else Event.RUNNING)
        self._silent_since_s = None
        return self._seen(gateway, view)

    def _seen(self, gateway: Gateway, view: JobView) -> Step:
        """Return what the state of the job at a gateway means."""
        tracked = self._tracked
        tracked.address = gateway.address
        if view.phase is CompactionPhase.QUEUED:
            return Step(Event.QUEUED)
        if view.phase is CompactionPhase.RUNNING:
            tracked.idle_since_s = self._here.clock()
            return Step(Event.RUNNING)
        if view.phase is CompactionPhase.DONE:
            return Step(Event.WRITTEN)
        why = f"{view.phase.value} at {gateway.address}: {view.message}"
        if view.phase is CompactionPhase.ABORTED and view.code in _WITHDRAWN:
            return Step(Event.WITHDRAWN, None, why)
        if self._is_own and view.phase is CompactionPhase.FAILED and view.fault in _VERDICTS:
            self._verdict = view
            return Step(Event.VERDICT)
        if view.phase is CompactionPhase.FAILED and view.worker:
            tracked.judges.setdefault(view.worker, None)
        return self._failed(why)

    def _judge(self) -> Step:
        """Believe a worker's verdict if another worker, or this process itself, says the same.

        With the strategy `fallback` the local service is the judge.
        """
        view, judges = self._verdict, self._tracked.judges
        why = f"{view.message} (at {self._tracked.address})"
        another = any(f is view.fault for w, f in judges.items() if w != view.worker)
        alone = view.worker in judges
        judges[view.worker] = view.fault
        if self._options.fall_back or not (another or (alone and self._inputs_are_damaged())):
            return self._failed(why)
        self._here.counts.add("failed")
        _log.error("compaction %s failed: %s", self._tracked.id, why)
        return Step(Event.CONFIRMED, view.fault, why)

    def _inputs_are_damaged(self) -> bool:
        try:
            self._here.read(self._job, self._job.inputs)
        except (CorruptStateError, ObjectNotFoundError):
            return True
        except StorageError as error:
            _log.info("the inputs of %s could not be read: %s", self._tracked.id, error)
        return False

    def _verify(self) -> Step:
        """Read the outputs of a job that its gateway reports done: no task waits for it."""
        tracked, here = self._tracked, self._here
        if tracked.job is None:
            here.counts.add("done")
            return Step(Event.UNREAD)
        try:
            result = tracked.job.stored_result(here.storage.child(tracked.job.operator))
            here.read(tracked.job, result.outputs)
        except (CorruptStateError, ObjectNotFoundError) as error:
            # What is below its prefix stays there, so that only another prefix helps.
            if isinstance(error, CorruptStateError):
                here.counts.add("verify_failures")
            if self._is_damaged_for_long():
                return self._give_up(str(error))
            here.counts.add("lost")
            _log.warning("compaction %s is submitted again: %s", tracked.id, error)
            return Step(Event.DAMAGED, None, str(error))
        except StorageError as error:
            _log.warning("compaction %s is verified when it is installed: %s", tracked.id, error)
            here.counts.add("done")
            return Step(Event.UNREAD)
        here.damaged_s.pop(self._submission.work, None)
        here.counts.add("done")
        return Step(Event.INTACT)

    def _is_damaged_for_long(self) -> bool:
        """Whether to give up work whose results are damaged, under whatever prefix it is done."""
        if self._options.fall_back:
            return False
        first_s = self._here.damaged_s.setdefault(self._submission.work, self._tracked.submitted_s)
        is_late = self._here.clock() - first_s >= self._options.queue_timeout_s
        return is_late and self._tracked.tries >= self._options.request_retries

    # -- at no gateway ------------------------------------------------------------------------

    def _decide(self) -> Step:
        """Offer the job again, run it here, or give it up."""
        tracked, trouble, here = self._tracked, self._tracked.trouble, self._here
        assert trouble is not None, "see `_troubled`"
        if tracked.job is None:
            return Step(Event.HAND_BACK, None, trouble.why)
        event = self._patience().decide(trouble)
        if event is Event.AGAIN:
            if trouble.kind is Kind.FAILED:
                here.counts.add("retries")
            here.gateways.warn(trouble.where, trouble.why)
            self._pause(trouble.pause_s)
            return Step(event)
        if event is Event.FALL_BACK:
            self._count_fallback(trouble)
            return self._run_here(tracked.job)
        return self._give_up(trouble.why)

    def _give_up(self, why: str) -> Step:
        self._here.counts.add("failed")
        why = f"remote compaction gave up, and request.failure-strategy is 'fail': {why}"
        _log.error("compaction %s: %s", self._tracked.id, why)
        return Step(Event.GIVE_UP, CompactionFault.UNAVAILABLE, why)

    def _count_fallback(self, trouble: Trouble) -> None:
        here = self._here
        what = f"compaction {self._tracked.id} runs in this process: {trouble.why}"
        if trouble.kind is Kind.STAYS:
            here.counts.add(trouble.cause)
            _log.info("%s", what)
        else:
            here.counts.add("fallbacks", trouble.cause)
            here.gateways.warn(trouble.where or (trouble.cause,), what)

    def _run_here(self, job: CompactionJob) -> Step:
        try:
            self._here.local.submit(job)
        except (ForebayError, ValueError) as error:
            return Step(Event.GIVE_UP, CompactionFault.PERMANENT, str(error))
        return Step(Event.FALL_BACK)

    def _pause(self, least_s: float) -> None:
        patience = self._patience()
        pause_s = max(least_s, self._pause_s) * random.uniform(0.5, 1.0)
        left_s = max(0.0, patience.queue_timeout_s - patience.idle_s)
        self._tracked.wait(lambda state: state.ended, min(pause_s, left_s))
        self._pause_s = min(_LONGEST_PAUSE_S, self._pause_s * 2)

    # -- helpers ------------------------------------------------------------------------------

    @property
    def _job(self) -> CompactionJob:
        assert self._tracked.job is not None, "only a job of this process is offered"
        return self._tracked.job

    @property
    def _submission(self) -> Submission:
        return Submission(
            job=self._job,
            storage=self._options.storage,
            client=self._here.client,
            avoid=tuple(self._tracked.judges),
        )

    @property
    def _is_own(self) -> bool:
        """Whether this process submitted the job; otherwise another may ask about it."""
        return self._tracked.job is not None

    def _patience(self) -> Patience:
        tracked, options, now = self._tracked, self._options, self._here.clock()
        return Patience(
            fall_back=options.fall_back,
            retries=options.request_retries,
            queue_timeout_s=options.queue_timeout_s,
            request_timeout_s=options.request_timeout_s,
            tries=tracked.tries,
            waited_s=now - tracked.submitted_s,
            idle_s=now - tracked.idle_since_s,
        )

    def _too_late(self, *, queued: bool) -> str:
        patience = self._patience()
        if queued and patience.idle_s >= patience.queue_timeout_s:
            return f"waited {patience.idle_s:.0f} s in the queue"
        if patience.waited_s >= patience.request_timeout_s:
            return f"was not done after {patience.waited_s:.0f} s"
        return ""

    def _wait_s(self, *, queued: bool) -> float:
        if self._silent_since_s is not None:
            return 0.0  # the first answer counts
        patience = self._patience()
        left_s = patience.request_timeout_s - patience.waited_s
        if queued:
            left_s = min(left_s, patience.queue_timeout_s - patience.idle_s)
            if len(self._here.gateways.up()) > 1:
                left_s = min(left_s, _QUEUED_POLL_S)
        return max(0.0, min(_POLL_S, left_s))

    def _is_stuck(self, gateway: Gateway) -> bool:
        """Whether the gateway that has the job cannot begin it, and another one could."""
        gateways = self._here.gateways
        others = [other for other in gateways.in_turn() if other.address != gateway.address]
        if not others or _is_ready(gateways.greet(gateway)):
            return False
        return any(_is_ready(gateways.greet(other)) for other in others)

    def _leave(self) -> None:
        try:
            self._here.gateways.at(self._tracked.address).abort(self._tracked.id)
        except (UnreachableError, RefusedError) as error:
            _log.info("job %s could not be aborted: %s", self._tracked.id, error)

    def _failed(self, why: str) -> Step:
        """Note that a gateway or a worker had the job, and has not done it."""
        self._tracked.tries += 1
        self._here.counts.add("lost")
        _log.info("compaction %s: %s", self._tracked.id, why)
        return self._troubled(Trouble(Kind.FAILED, why, "attempts"))

    def _troubled(self, trouble: Trouble) -> Step:
        self._tracked.trouble = trouble
        return Step(Event.TROUBLE)


def _is_ready(greeting: Greeting | Trouble) -> bool:
    return isinstance(greeting, Greeting) and greeting.workers > 0
