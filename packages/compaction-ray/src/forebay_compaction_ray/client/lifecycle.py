"""The states of a job and of a gateway, as a client sees them, and every transition between them.

A job may be run any number of times, anywhere, also at once: each run writes below a name of its
own, and the first result counts. So a job whose fate is unclear is simply offered again.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import attrs

from forebay_compaction_ray.options import RemoteOptions
from forebay_state_api.contract.compaction_service import CompactionPhase


class State(enum.Enum):
    """The state of a job, and the phase that its owner sees."""

    ASKED = "asked", CompactionPhase.UNKNOWN
    """Another process submitted it: the gateways are asked about it."""
    OFFERED = "offered", CompactionPhase.QUEUED
    """The job is offered to one gateway after the other, also while it waits for a thread."""
    QUEUED = "queued", CompactionPhase.QUEUED
    """A gateway has it, and no worker yet."""
    RUNNING = "running", CompactionPhase.RUNNING
    """A worker has it."""
    LOCAL = "local", CompactionPhase.QUEUED
    """This process compacts it, also while it waits for its turn."""
    DONE = "done", CompactionPhase.DONE
    """Its outputs are intact, unless only another process could verify them."""
    FAILED = "failed", CompactionPhase.FAILED
    LOST = "lost", CompactionPhase.LOST
    """Its owner has to submit it again, under another id and prefix."""
    UNKNOWN = "unknown", CompactionPhase.UNKNOWN
    """No gateway knows it; another process may have it."""
    ABORTED = "aborted", CompactionPhase.ABORTED
    """The result is not needed any more."""
    LEFT = "left", CompactionPhase.ABORTED
    """This process ends; a gateway may continue the job."""

    def __init__(self, label: str, phase: CompactionPhase) -> None:
        self.label: Final = label
        self.phase: Final = phase

    @property
    def ended(self) -> bool:
        """Whether the job stays in this state."""
        return self not in _POSSIBLE


class Event(enum.Enum):
    """An event in the life of a job, and the state that follows."""

    QUEUED = "a gateway has it in its queue", State.QUEUED
    RUNNING = "a worker runs it", State.RUNNING
    DONE = "it is done, and its outputs are as its result describes them", State.DONE
    AGAIN = "nobody has it, and it is offered once more", State.OFFERED
    FALL_BACK = "nobody has it, and it runs in this process", State.LOCAL
    FAIL = "it can never be done, or not in its time", State.FAILED
    HAND_BACK = "its owner has to submit it again", State.LOST
    NOWHERE = "no gateway knows it", State.UNKNOWN
    UNWANTED = "its owner aborts or releases it", State.ABORTED
    LEAVE = "this process ends", State.LEFT

    def __init__(self, _: str, leads_to: State) -> None:
        self.leads_to: Final = leads_to


_ENDS: Final = frozenset({Event.DONE, Event.HAND_BACK, Event.UNWANTED, Event.LEAVE})
_FOUND: Final = _ENDS | {Event.QUEUED, Event.RUNNING}
_OFFERED: Final = _FOUND | {Event.AGAIN, Event.FALL_BACK, Event.FAIL}
_POSSIBLE: Final[Mapping[State, frozenset[Event]]] = {
    State.ASKED: _FOUND | {Event.NOWHERE},
    State.OFFERED: _OFFERED,
    State.QUEUED: _OFFERED,
    State.RUNNING: _OFFERED,
    State.LOCAL: _ENDS | {Event.FAIL},
}
"""State → the events that can happen there. In every other state a job is done."""


def next_state(state: State, event: Event) -> State:
    """Return the state after an event; raises `ValueError` for one that cannot happen there.

    A job that is done stays as it is.
    """
    if state.ended:
        return state
    if event not in _POSSIBLE[state]:
        raise ValueError(f"{event} cannot happen to a job that is {state.label}")
    return event.leads_to


class ConnectionState(enum.Enum):
    """The state of the connection to a gateway."""

    UP = "up"
    RESTING = "resting"
    """The last call had no answer: calls fail at once, until one of them tries it again."""
    CLOSED = "closed"

    def after(self, call: CallEvent) -> ConnectionState:
        """Return the state after an event; a closed connection stays closed."""
        return self if self is ConnectionState.CLOSED else call.value


class CallEvent(enum.Enum):
    """An event of the connection to a gateway, and the state that follows."""

    ANSWERED = RENEWED = ConnectionState.UP
    """A call was answered, or the next one has other credentials."""
    SILENT = ConnectionState.RESTING
    CLOSE = ConnectionState.CLOSED


class TroubleKind(enum.IntEnum):
    """The kinds of trouble. Of the troubles of several gateways the least one counts."""

    FAILED = 0
    """A worker or a gateway had the job, and has not done it."""
    BUSY = 1
    """A gateway has no room for it now."""
    AWAY = 2
    """No gateway could be asked, or the gateways refused the client."""
    NEVER = 3
    """It has timed out, exceeds the limits, or its files are missing: waiting does not help."""


@attrs.frozen
class Trouble:
    """The reason why no gateway has taken a job."""

    kind: TroubleKind
    why: str
    cause: str
    """The cause as in `EVENTS`, after ``fallbacks:``."""
    where: tuple[str, ...] = ()
    """The gateways that it concerns."""


def combined(troubles: Sequence[Trouble]) -> Trouble:
    """Return the troubles of several gateways as one, which is temporary if any of them is."""
    least = min(troubles, key=lambda trouble: trouble.kind)
    return attrs.evolve(
        least,
        why="; ".join(trouble.why for trouble in troubles),
        where=tuple(address for trouble in troubles for address in trouble.where),
    )


@attrs.define(kw_only=True)
class Patience:
    """The time limits of a job, and the time that it has taken."""

    options: RemoteOptions
    clock: Callable[[], float]
    tries: int = 0
    """Number of runs that began and have no result, in all processes."""
    submitted_s: float = attrs.Factory(lambda self: self.clock(), takes_self=True)
    idle_since_s: float = attrs.Factory(lambda self: self.submitted_s, takes_self=True)
    """The time at which it was submitted, or a worker last had it."""

    @property
    def waited_s(self) -> float:
        """Seconds since its submission."""
        return self.clock() - self.submitted_s

    def left_s(self, *, queued: bool) -> float:
        """Return for how long it may run on, or wait for a worker if it is ``queued``."""
        left_s = self.options.request_timeout_s - self.waited_s
        in_queue_s = self.options.queue_timeout_s - (self.clock() - self.idle_since_s)
        return min(left_s, in_queue_s) if queued else left_s

    def decide(self, trouble: Trouble) -> Event:
        """Return the decision about a job of this process that no gateway has."""
        if self._may_wait(trouble.kind) and self.left_s(queued=False) > 0:
            return Event.AGAIN
        return Event.FALL_BACK if self.options.fall_back else Event.FAIL

    def _may_wait(self, kind: TroubleKind) -> bool:
        fall_back = self.options.fall_back
        if kind is TroubleKind.FAILED:
            in_time = not fall_back and self.waited_s < self.options.queue_timeout_s
            return self.tries <= self.options.request_retries or in_time
        waits = kind is TroubleKind.BUSY or (kind is TroubleKind.AWAY and not fall_back)
        return waits and self.left_s(queued=True) > 0
