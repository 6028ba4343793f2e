"""One job in a process that submitted it or asked about it, and its walk from state to state.

Each state in which a job can be acted on has one method here. It returns the event that
`lifecycle.next_state` turns into the next state, or the trouble of which `Patience.decide` makes
one.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import attrs

from forebay_compaction_ray.client.counts import Counts
from forebay_compaction_ray.client.gateway import Gateway, UnreachableError
from forebay_compaction_ray.client.gateways import Gateways, trouble_of
from forebay_compaction_ray.client.lifecycle import (
    Event,
    Kind,
    Patience,
    State,
    Trouble,
    combined,
    next_state,
)
from forebay_compaction_ray.messages import Greeting, JobView, Submission
from forebay_compaction_ray.options import RemoteOptions
from forebay_compaction_ray.protocol import RefusedError
from forebay_state_api.compaction.local_service import run_here
from forebay_state_api.contract.compaction_job import CompactionJob
from forebay_state_api.contract.compaction_service import (
    CompactionFault,
    CompactionPhase,
    CompactionStatus,
)
from forebay_state_api.contract.compactor import Compactor, VerifyingCompactor
from forebay_state_api.contract.files import StateFile
from forebay_state_api.contract.object_storage import ObjectNotFoundError, ObjectStorage
from forebay_state_api.errors import CorruptStateError, StorageError

_log = logging.getLogger(__name__)

_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 2.0
_POLL_S: Final = 10.0
"""Duration of a long poll."""
_QUEUED_POLL_S: Final = 2.0
"""Duration of a poll in a queue: another gateway might take the job meanwhile."""
_SILENCE_S: Final = 10.0
"""A gateway that has the job and does not answer for this long is given up."""
_VERDICTS: Final = (CompactionFault.PERMANENT, CompactionFault.CORRUPTION)
_ENDED_HERE: Final = {
    CompactionPhase.DONE: Event.INTACT,
    CompactionPhase.FAILED: Event.FAIL,
    CompactionPhase.ABORTED: Event.LEAVE,
}
_WITHDRAWN: Final = frozenset({"asked", "released"})
"""Codes of a job that its owner withdrew, in another process."""


@attrs.frozen
class Step:
    """An event, with the fault and the message of the job if that is its end."""

    event: Event
    fault: CompactionFault | None = None
    message: str = ""


@attrs.frozen(kw_only=True)
class Surroundings:
    """Everything that the walks of all jobs of a process share."""

    storage: ObjectStorage
    options: RemoteOptions
    gateways: Gateways
    find_compactor: Callable[[str], Compactor]
    counts: Counts
    client: str
    clock: Callable[[], float]
    damaged_s: dict[str, float] = attrs.field(factory=dict)
    """Work, as in `Submission.work` → when its first job with a damaged result was submitted."""
    one_at_a_time: threading.Lock = attrs.field(factory=threading.Lock)
    """Held by the job that this process compacts."""

    def read(self, job: CompactionJob, files: Iterable[StateFile]) -> None:
        """Raise `CorruptStateError` for a file that is damaged, if its format allows a check."""
        compactor = self.find_compactor(job.format)
        if isinstance(compactor, VerifyingCompactor):
            here = self.storage.child(job.operator)
            for file in files:
                compactor.verify(file, here)


class TrackedJob:
    """A job and its walk. `run` moves it on, on one thread; any thread may read it or end it."""

    def __init__(self, job_id: str, job: CompactionJob | None, here: Surroundings) -> None:
        """``job`` is ``None`` if another process submitted it."""
        self.id: Final = job_id
        self.job: Final = job
        self.address = ""
        """The gateway that has it, or had it."""
        self.state = State.ASKED if job is None else State.OFFERED
        self.status = CompactionStatus(job_id, self.state.phase)
        """The status that its owner sees."""
        self._here: Final = here
        self._options: Final = here.options
        self._changed: Final = threading.Condition()
        self._submitted_s: Final = here.clock()
        self._idle_since_s = self._submitted_s
        """When it was submitted, or a worker last had it."""
        self._silent_since_s: float | None = None
        """Since when the gateway that has it has not answered."""
        self._tries = 0 if job is None else job.attempt - 1
        """How often it was begun and not done, in whatever process."""
        self._judges: dict[str, CompactionFault | None] = {}
        """Workers that have not done it, with the fault that each reported."""
        self._so_far = Trouble(Kind.NEVER, "it waited for a thread", "queue")
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
        """Walk until the job has ended."""
        while (act := self._actions.get(self.state)) is not None:
            try:
                found = act()
            except Exception as error:  # noqa: BLE001 - a job must end
                found = self._failed(f"the client failed: {error!r}")
            step = self._decide(found) if isinstance(found, Trouble) else found
            self.advance(step.event, step.fault, step.message)
        if self.state is State.ABORTED:  # its owner may not have known where it is
            self._leave()

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

    # -- to a gateway -------------------------------------------------------------------------

    def _ask(self) -> Step | Trouble:
        """Ask all gateways for a job that another process submitted; start nothing."""
        for gateway in self._here.gateways.in_turn():
            try:
                view = gateway.poll(self.id)
            except (UnreachableError, RefusedError) as error:
                _log.info("%s", error)
                continue
            if view.phase is not CompactionPhase.UNKNOWN:
                return self._seen(gateway, view)
        return Step(Event.NOWHERE)

    def _offer(self) -> Step | Trouble:
        """Offer the job to one gateway after the other."""
        here, patience = self._here, self._patience()
        if patience.left_s(queued=True) <= 0:
            return self._so_far
        if self._options.fall_back and patience.tries > self._options.request_retries:
            return Trouble(Kind.FAILED, f"{patience.tries} attempts have failed", "attempts")
        if not (turn := here.gateways.in_turn()):  # they were removed on purpose
            here.counts.add("no_endpoint")
            return Step(Event.FALL_BACK)
        troubles: list[Trouble] = []
        for found in self._answers(turn):
            if isinstance(found, Step):
                for trouble in troubles:
                    if trouble.kind is not Kind.BUSY:
                        here.gateways.warn(trouble)
                return found
            troubles.append(found)
        return combined(troubles)

    def _answers(self, turn: Iterable[Gateway]) -> Iterator[Step | Trouble]:
        """Yield the answer of each gateway, first of those with workers that have not failed at it.

        A gateway without such a worker is asked last, for any worker.
        """
        submission = self._submission
        second_choice = []
        for gateway in turn:
            found: Greeting | Step | Trouble = self._here.gateways.greet(gateway, submission)
            if isinstance(found, Greeting) and found.workers:
                found = self._submit(gateway, submission)
            if isinstance(found, Greeting) or getattr(found, "code", "") == "no_other_worker":
                second_choice.append(gateway)
            else:
                yield found
        for gateway in second_choice:
            yield self._submit(gateway, attrs.evolve(submission, avoid=()))

    def _submit(self, gateway: Gateway, submission: Submission) -> Step | Trouble:
        try:
            view = gateway.submit(submission)
        except (RefusedError, UnreachableError) as error:  # it may have arrived: see lifecycle
            return trouble_of(gateway, error)
        return self._seen(gateway, view)

    # -- at a gateway -------------------------------------------------------------------------

    def _follow(self) -> Step | Trouble:
        """Ask the gateway that has the job once more."""
        gateway = self._here.gateways.at(self.address)
        queued = self.state is State.QUEUED
        if trouble := self._late(gateway, queued=queued) or (queued and self._stuck(gateway)):
            self._leave()
            return trouble
        try:
            view = gateway.poll(self.id, self._wait_s(queued=queued))
        except RefusedError as refused:
            return self._failed(f"{gateway.address}: {refused}")
        except UnreachableError as error:
            now = self._here.clock()
            self._silent_since_s = self._silent_since_s or now
            if now - self._silent_since_s >= _SILENCE_S:
                return self._failed(str(error))
            self.wait(lambda state: state.ended, _FIRST_PAUSE_S)
            return Step(Event.QUEUED if queued else Event.RUNNING)
        self._silent_since_s = None
        return self._seen(gateway, view)

    def _late(self, gateway: Gateway, *, queued: bool) -> Trouble | None:
        patience = self._patience()
        if patience.left_s(queued=queued) > 0:
            return None
        why = f"it was not done after {patience.waited_s:.0f} s at {gateway.address}"
        if queued:
            why += f", the last {patience.idle_s:.0f} of them in the queue"
        return Trouble(Kind.NEVER, why, "queue")

    def _stuck(self, gateway: Gateway) -> Trouble | None:
        """Return the trouble of a gateway that cannot begin the job while another one could."""
        if self.job is None:
            return None  # its owner has its own patience
        gateways, submission = self._here.gateways, self._submission

        def can_begin(one: Gateway) -> bool:
            greeting = gateways.greet(one, submission)
            return isinstance(greeting, Greeting) and greeting.workers > 0

        others = [other for other in gateways.in_turn() if other is not gateway]
        if not others or can_begin(gateway) or not any(map(can_begin, others)):
            return None
        return Trouble(Kind.BUSY, f"it waits without a worker at {gateway.address}", "queue")

    def _wait_s(self, *, queued: bool) -> float:
        if self._silent_since_s is not None:
            return 0.0  # the first answer counts
        left_s = self._patience().left_s(queued=queued)
        return max(0.0, min(left_s, _QUEUED_POLL_S if queued else _POLL_S))

    def _seen(self, gateway: Gateway, view: JobView) -> Step | Trouble:
        """Return what the state of the job at a gateway means."""
        self.address = gateway.address
        if view.phase is CompactionPhase.QUEUED:
            return Step(Event.QUEUED)
        if view.phase is CompactionPhase.RUNNING:
            self._idle_since_s = self._here.clock()
            return Step(Event.RUNNING)
        if view.phase is CompactionPhase.DONE:
            return self._verified()
        why = f"{view.phase.value} at {gateway.address}: {view.message}"
        if view.phase is CompactionPhase.ABORTED and view.code in _WITHDRAWN:
            return Step(Event.HAND_BACK, message=why)
        if view.phase is CompactionPhase.FAILED and self._is_final(view):
            return self._end(view.fault, why)
        return self._failed(why)

    def _is_final(self, view: JobView) -> bool:
        """Note that a worker has failed; return whether nobody can do the job.

        That takes a second judge: another worker or, if the same one is asked again, this process.
        With the strategy `fallback` the local compaction is the judge.
        """
        if self.job is None or not view.worker:
            return False
        judges = self._judges
        others = [fault for worker, fault in judges.items() if worker != view.worker]
        is_back = view.worker in judges
        judges[view.worker] = view.fault
        if self._options.fall_back or view.fault not in _VERDICTS:
            return False
        return view.fault in others or (is_back and self._are_inputs_damaged())

    def _are_inputs_damaged(self) -> bool:
        try:
            self._here.read(self._job, self._job.inputs)
        except (CorruptStateError, ObjectNotFoundError):
            return True
        except StorageError as error:
            _log.info("the inputs of %s could not be read: %s", self.id, error)
        return False

    def _verified(self) -> Step:
        """Read the outputs of a job that its gateway reports done: no task waits for it."""
        here, event = self._here, Event.UNREAD
        try:
            if self.job is not None:
                result = self.job.stored_result(here.storage.child(self.job.operator))
                here.read(self.job, result.outputs)
                here.damaged_s.pop(self._submission.work, None)
                event = Event.INTACT
        except (CorruptStateError, ObjectNotFoundError) as error:
            return self._damaged(error)
        except StorageError as error:
            _log.warning("compaction %s is verified when it is installed: %s", self.id, error)
        here.counts.add("done")
        return Step(event)

    def _damaged(self, error: Exception) -> Step:
        """Hand the job back: what is below its prefix stays there, so only another prefix helps.

        With the strategy `fail` give up work whose results are damaged for long, whatever prefix.
        """
        here = self._here
        if isinstance(error, CorruptStateError):
            here.counts.add("verify_failures")
        if not self._options.fall_back:
            first_s = here.damaged_s.setdefault(self._submission.work, self._submitted_s)
            is_late = here.clock() - first_s >= self._options.queue_timeout_s
            if is_late and self._tries >= self._options.request_retries:
                return self._give_up(str(error))
        here.counts.add("lost")
        _log.warning("compaction %s is submitted again: %s", self.id, error)
        return Step(Event.HAND_BACK, message=str(error))

    # -- at no gateway ------------------------------------------------------------------------

    def _decide(self, trouble: Trouble) -> Step:
        """Offer the job again, run it here, or give it up."""
        here = self._here
        if self.job is None:
            return Step(Event.HAND_BACK, message=trouble.why)
        event = self._patience().decide(trouble)
        if event is Event.FAIL:
            return self._give_up(trouble.why)
        if event is Event.FALL_BACK:
            here.counts.add(f"fallbacks:{trouble.cause}")
            why = f"compaction {self.id} runs in this process: {trouble.why}"
            here.gateways.warn(attrs.evolve(trouble, why=why))
            return Step(event)
        if trouble.kind is Kind.FAILED:
            here.counts.add("retries")
        here.gateways.warn(trouble)
        self._so_far = attrs.evolve(trouble, kind=Kind.NEVER)
        self._pause(trouble.pause_s)
        return Step(event)

    def _run_here(self) -> Step:
        here = self._here
        with here.one_at_a_time:
            status = run_here(
                self._job, here.find_compactor, here.storage, lambda: self.state.ended
            )
        return Step(_ENDED_HERE[status.phase], status.fault, status.message)

    def _give_up(self, why: str) -> Step:
        why = f"remote compaction gave up, and request.failure-strategy is 'fail': {why}"
        return self._end(CompactionFault.UNAVAILABLE, why)

    def _end(self, fault: CompactionFault | None, why: str) -> Step:
        self._here.counts.add("failed")
        _log.error("compaction %s failed: %s", self.id, why)
        return Step(Event.FAIL, fault, why)

    def _pause(self, least_s: float) -> None:
        pause_s = max(least_s, self._pause_s) * random.uniform(0.5, 1.0)
        left_s = max(0.0, self._patience().left_s(queued=True))
        self.wait(lambda state: state.ended, min(pause_s, left_s))
        self._pause_s = min(_LONGEST_PAUSE_S, self._pause_s * 2)

    def _failed(self, why: str) -> Trouble:
        """Note that a gateway or a worker had the job, and has not done it."""
        self._tries += 1
        self._here.counts.add("lost")
        _log.info("compaction %s: %s", self.id, why)
        return Trouble(Kind.FAILED, why, "attempts")

    # -- helpers ------------------------------------------------------------------------------

    @property
    def _job(self) -> CompactionJob:
        assert self.job is not None, "only a job of this process is offered"
        return self.job

    @property
    def _submission(self) -> Submission:
        return Submission(
            job=self._job,
            storage=self._options.storage,
            client=self._here.client,
            avoid=tuple(self._judges),
        )

    def _patience(self) -> Patience:
        now = self._here.clock()
        return Patience(
            options=self._options,
            tries=self._tries,
            waited_s=now - self._submitted_s,
            idle_s=now - self._idle_since_s,
        )

    def _leave(self) -> None:
        if self.address:
            self._here.gateways.tell(self.address, lambda g: g.abort(self.id))
