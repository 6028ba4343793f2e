"""A job as one of its clients sees it, and its transitions from state to state.

Each state in which a job can be acted on has one method here. It returns the event that
`lifecycle.next_state` turns into the next state, or the trouble of which `Patience.decide` makes
one.
"""

from __future__ import annotations

import itertools
import logging
import random
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import attrs

from forebay_compaction_ray.client.client_context import ClientContext
from forebay_compaction_ray.client.gateway import Gateway, UnreachableError
from forebay_compaction_ray.client.gateways import Gateways
from forebay_compaction_ray.client.lifecycle import (
    Event,
    Patience,
    State,
    Trouble,
    TroubleKind,
    combined,
    next_state,
)
from forebay_compaction_ray.messages import TAKEN_PREFIX, Greeting, JobView, Submission
from forebay_compaction_ray.protocol import RefusedError
from forebay_engine.compaction.local_service import run_here
from forebay_state_api.contract.compaction_job import CompactionJob
from forebay_state_api.contract.compaction_service import (
    CompactionFault,
    CompactionPhase,
    CompactionStatus,
)
from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.errors import CorruptStateError, StorageError

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0
_POLL_S: Final = 10.0
"""Duration of a long poll."""
_QUEUED_POLL_S: Final = 2.0
"""Duration of a poll in a queue: another gateway might take the job meanwhile."""
_SILENCE_S: Final = 20.0
"""A gateway whose last answer about a job is older is given up: a poll, and as long again."""
_VERDICTS: Final = (CompactionFault.PERMANENT, CompactionFault.CORRUPTION)
_ENDED_HERE: Final = {
    CompactionPhase.DONE: Event.DONE,
    CompactionPhase.FAILED: Event.FAIL,
    CompactionPhase.ABORTED: Event.LEAVE,
}


@attrs.frozen
class Step:
    """An event, with the fault and the message of the job if that is its end."""

    event: Event
    fault: CompactionFault | None = None
    message: str = ""


@attrs.frozen
class _Verdict:
    """A worker's report of a failure, and the machine that it comes from."""

    node: str
    fault: CompactionFault | None

    def is_confirmed_by(self, other: _Verdict) -> bool:
        """Return whether another machine says the same."""
        return self.fault is other.fault and self.node != other.node


class TrackedJob:
    """A job and its state. `run` advances it, on one thread; any thread may read it or end it."""

    def __init__(
        self, job_id: str, job: CompactionJob | None, here: ClientContext, gateways: Gateways
    ) -> None:
        """``job`` is ``None`` if another process submitted it."""
        self.id: Final = job_id
        self.job: Final = job
        self.address = ""
        """The gateway that has it, or had it."""
        self.state = State.ASKED if job is None else State.OFFERED
        self.status = CompactionStatus(job_id, self.state.phase)
        """The status that its owner sees."""
        self._here: Final = here
        self._gateways: Final = gateways
        self._changed: Final = threading.Condition()
        tries = 0 if job is None else job.attempt - 1
        self._patience: Final = Patience(options=here.options, clock=here.clock, tries=tries)
        self._answered_s = self._patience.submitted_s
        """When a gateway last reported its state."""
        self._judges: dict[str, _Verdict] = {}
        """Workers that have not done it, with what each reported."""
        self._are_inputs_intact = False
        """Whether this process has read all inputs."""
        self._so_far = Trouble(TroubleKind.NEVER, "it waited for a thread", "queue")
        """The last trouble, for when its time is over."""
        self._pause_s = _FIRST_PAUSE_S
        self._actions: Final[Mapping[State, Callable[[], Step | Trouble]]] = {
            State.ASKED: self._ask,
            State.OFFERED: self._offer,
            State.QUEUED: self._follow,
            State.RUNNING: self._follow,
            State.LOCAL: self._run_here,
        }

    def run(self) -> None:
        """Advance until the job is done."""
        while (act := self._actions.get(self.state)) is not None:
            try:
                found = act()
            except Exception as error:  # noqa: BLE001 - a job must end
                found = self._failed(f"the client failed: {error!r}")
            step = self._decide(found) if isinstance(found, Trouble) else found
            self.advance(step.event, step.fault, step.message)
        if self.state is State.ABORTED and self.address:  # its owner may not have known it
            self._gateways.release(self.id, self.address)

    def advance(self, event: Event, fault: CompactionFault | None = None, why: str = "") -> None:
        """Move to the next state; a job that is done keeps its state."""
        with self._changed:
            if not self.state.ended:
                self.state = next_state(self.state, event)
                self.status = CompactionStatus(self.id, self.state.phase, fault, why)
            self._changed.notify_all()

    def wait(self, until: Callable[[State], bool], timeout_s: float | None) -> State:
        """Wait for a state, at most ``timeout_s`` seconds if given; return the present one."""
        with self._changed:
            self._changed.wait_for(lambda: until(self.state), timeout_s)
            return self.state

    # -- to a gateway -------------------------------------------------------------------------

    def _ask(self) -> Step | Trouble:
        """Ask all gateways for a job that another process submitted; start nothing."""
        for gateway in self._gateways.in_turn():
            with suppress(UnreachableError, RefusedError):
                view = gateway.poll(self.id)
                if view.phase is not CompactionPhase.UNKNOWN:
                    return self._seen(gateway, view)
        return Step(Event.NOWHERE)

    def _offer(self) -> Step | Trouble:
        """Offer the job to one gateway after the other; gateways without a worker come last."""
        here, patience = self._here, self._patience
        if patience.left_s(queued=True) <= 0:
            return self._so_far
        if here.options.fall_back and patience.tries > here.options.request_retries:
            return Trouble(TroubleKind.FAILED, f"{patience.tries} attempts have failed", "attempts")
        if not (gateways := self._gateways.in_turn()):  # they were removed on purpose
            here.counts.add("no_endpoint")
            return Step(Event.FALL_BACK)
        gateways = sorted(gateways, key=lambda one: one.address == self.address)
        without_workers, troubles = list[Gateway](), list[Trouble]()
        for gateway in itertools.chain(gateways, without_workers):
            found = self._offer_to(gateway, wait=gateway in without_workers)
            if found is None:
                without_workers.append(gateway)
            elif isinstance(found, Trouble):
                troubles.append(found)
            else:
                self._gateways.warn(*(t for t in troubles if t.kind is not TroubleKind.BUSY))
                return found
        return combined(troubles)

    def _offer_to(self, gateway: Gateway, *, wait: bool) -> Step | Trouble | None:
        """Offer the job to a gateway; return ``None`` if it would have to ``wait`` for a worker."""
        submission = self._submission
        found = self._gateways.greet(gateway, submission)
        if isinstance(found, Trouble):
            return found
        if not (found.workers or wait):
            return None
        try:
            return self._seen(gateway, gateway.submit(submission))
        except (RefusedError, UnreachableError) as error:  # it may have arrived: see lifecycle
            return self._gateways.trouble_of(gateway, error)

    # -- at a gateway -------------------------------------------------------------------------

    def _follow(self) -> Step | Trouble:
        """Ask the gateway that has the job once more."""
        gateway, queued = self._gateways.at(self.address), self.state is State.QUEUED
        patience = self._patience
        if (left_s := patience.left_s(queued=queued)) <= 0:
            where = f"{'in the queue of' if queued else 'at'} {self.address}"
            why = f"it was not done after {patience.waited_s:.0f} s, and is {where}"
            self._gateways.release(self.id, self.address)
            return Trouble(TroubleKind.NEVER, why, "queue")
        if queued and self.job is not None and (moved := self._moved(gateway)):
            return moved
        try:
            view = gateway.poll(self.id, min(left_s, _QUEUED_POLL_S if queued else _POLL_S))
        except (RefusedError, UnreachableError) as error:
            if self._here.clock() - self._answered_s >= _SILENCE_S:
                return self._failed(f"{self.address}: {error}")
            self.wait(lambda state: state.ended, _FIRST_PAUSE_S)
            return Step(Event.QUEUED if queued else Event.RUNNING)
        return self._seen(gateway, view)

    def _moved(self, former: Gateway) -> Step | None:
        """Move the job from a gateway without a worker to one that can begin it."""
        others = [gateway for gateway in self._gateways.in_turn() if gateway is not former]
        greeting = self._gateways.greet(former, self._submission) if others else None
        if greeting is None or (isinstance(greeting, Greeting) and greeting.workers):
            return None
        for other in others:
            if isinstance(found := self._offer_to(other, wait=False), Step):
                self._gateways.release(self.id, former.address)
                return found
        return None

    def _seen(self, gateway: Gateway, view: JobView) -> Step | Trouble:
        """Return the event for the state of the job at a gateway."""
        self.address, self._answered_s = gateway.address, self._here.clock()
        if view.phase is CompactionPhase.QUEUED:
            return Step(Event.QUEUED)
        if view.phase is CompactionPhase.RUNNING:
            self._patience.idle_since_s = self._answered_s
            self._here.outage.end()
            return Step(Event.RUNNING)
        if view.phase is CompactionPhase.DONE:
            return self._verified()
        return self._not_done(gateway, view)

    def _not_done(self, gateway: Gateway, view: JobView) -> Step | Trouble:
        """Return the event for a job that ended at a gateway without a result."""
        why = f"{view.phase.value} at {gateway.address}: {view.message}"
        if view.code == "released":  # by its owner, in another process
            return Step(Event.HAND_BACK, message=why)
        if view.code == TAKEN_PREFIX and self.job is not None:
            return self._hand_back(why)
        if view.phase is CompactionPhase.FAILED and self._is_final(view):
            return self._give_up(why, view.fault)
        return self._failed(why)

    def _is_final(self, view: JobView) -> bool:
        """Record that a worker has failed the job; return whether the job itself is at fault.

        Failures on one machine count once, because its workers share mounts, memory and plugins.
        The failure has to be confirmed by this process, which reads the inputs, or by a worker of
        another machine, because only a compactor finds its own defects, and not every format can be
        checked here. With the strategy `fallback` the local compaction decides.
        """
        if self.job is None or not view.worker:
            return False
        verdict = _Verdict(view.node or self.address, view.fault)
        agreed = any(verdict.is_confirmed_by(other) for other in self._judges.values())
        self._judges[view.worker] = verdict
        if self._here.options.fall_back or view.fault not in _VERDICTS:
            return False
        if self._are_inputs_damaged():
            return True
        refuted = self._are_inputs_intact and view.fault is CompactionFault.CORRUPTION
        return agreed and not refuted

    def _are_inputs_damaged(self) -> bool:
        """Read the inputs, once if they are intact: they are never written again."""
        try:
            if not self._are_inputs_intact:
                self._are_inputs_intact = self._here.read(self._job, self._job.inputs)
        except (StorageError, CorruptStateError) as error:
            return isinstance(error, ObjectNotFoundError | CorruptStateError)
        return False

    def _verified(self) -> Step | Trouble:
        """Read the outputs of a job that its gateway reports done: no task waits for it."""
        here = self._here
        try:
            if self.job is not None:
                result = self.job.stored_result(here.storage.child(self.job.operator))
                here.read(self.job, result.outputs)
                here.handed_back_s.pop(self._submission.work, None)
        except (CorruptStateError, ObjectNotFoundError) as error:
            return self._damaged(error)
        except StorageError as error:
            return self._failed(f"its outputs could not be read: {error}")
        here.counts.add("done")
        here.outage.end()
        return Step(Event.DONE)

    def _damaged(self, error: Exception) -> Step:
        self._here.counts.add("verify_failures")
        return self._hand_back(str(error))

    def _hand_back(self, why: str) -> Step:
        """Hand the job back: the files below its prefix stay there, so only another prefix helps.

        With the strategy `fail`, give up work that is handed back for too long, under any prefix.
        """
        here, trouble = self._here, self._failed(why)
        if not here.options.fall_back:
            work, submitted_s = self._submission.work, self._patience.submitted_s
            first_s = here.handed_back_s.setdefault(work, submitted_s)
            if attrs.evolve(self._patience, submitted_s=first_s).decide(trouble) is Event.FAIL:
                return self._give_up(trouble.why)
        _log.warning("compaction %s is submitted again: %s", self.id, why)
        return Step(Event.HAND_BACK, message=trouble.why)

    # -- at no gateway ------------------------------------------------------------------------

    def _decide(self, trouble: Trouble) -> Step:
        """Offer the job again, run it here, or give it up."""
        here, patience = self._here, self._patience
        if self.job is None:
            return Step(Event.HAND_BACK, message=trouble.why)
        event = patience.decide(trouble)
        if event is Event.FAIL:
            return self._give_up(trouble.why)
        if event is Event.FALL_BACK:
            here.counts.add(f"fallbacks:{trouble.cause}")
            self._log_trouble(f"compaction {self.id} runs in this process: ", trouble)
            return Step(event)
        if trouble.kind is TroubleKind.FAILED:
            here.counts.add("retries")
        self._log_trouble(f"compaction {self.id} is tried again: ", trouble)
        self._so_far = attrs.evolve(trouble, kind=TroubleKind.NEVER)
        pause_s = self._pause_s * random.uniform(0.5, 1.0)
        left_s = max(0.0, patience.left_s(queued=True))
        self.wait(lambda state: state.ended, min(pause_s, left_s))
        self._pause_s = min(_LONGEST_PAUSE_S, self._pause_s * 2)
        return Step(event)

    def _log_trouble(self, what: str, trouble: Trouble) -> None:
        """Log a failure; an outage is left to the runtime, which logs it once."""
        if self._here.outage.note(trouble):
            _log.info("%s%s", what, trouble.why)
        else:
            self._gateways.warn(attrs.evolve(trouble, why=f"{what}{trouble.why}"))

    def _run_here(self) -> Step:
        here = self._here
        with here.one_at_a_time:
            status = run_here(
                self._job, here.find_compactor, here.storage, lambda: self.state.ended
            )
        return Step(_ENDED_HERE[status.phase], status.fault, status.message)

    def _give_up(self, why: str, verdict: CompactionFault | None = None) -> Step:
        """Fail the job with the verdict of its judges, or because the strategy says so."""
        if verdict is None:
            why = f"remote compaction gave up, and request.failure-strategy is 'fail': {why}"
        self._here.counts.add("failed")
        _log.error("compaction %s failed: %s", self.id, why)
        return Step(Event.FAIL, verdict or CompactionFault.UNAVAILABLE, why)

    def _failed(self, why: str) -> Trouble:
        """Note that a gateway or a worker had the job, and has not done it."""
        self._patience.tries += 1
        self._here.counts.add("lost")
        _log.info("compaction %s: %s", self.id, why)
        return Trouble(TroubleKind.FAILED, why, "attempts")

    # -- helpers ------------------------------------------------------------------------------

    @property
    def _job(self) -> CompactionJob:
        assert self.job is not None, "only a job of this process is offered"
        return self.job

    @property
    def _submission(self) -> Submission:
        job, storage = self._job, self._here.options.storage
        return Submission(job=job, storage=storage, avoid=tuple(self._judges), digest=job.digest)
