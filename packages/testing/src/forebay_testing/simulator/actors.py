"""Processes, actors and their storage: every request stops its actor until it is chosen again."""

from __future__ import annotations

import enum
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import attrs

from forebay_engine.versions import WriterMemory
from forebay_engine.versions.cleaning.object_cache import ObjectCache
from forebay_state_api.threads import RANDOM
from forebay_testing.stepped_thread import SteppedThread
from forebay_testing.storage import WrappedStorage

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage

T = TypeVar("T")


class Toxic(enum.Enum):
    """The fate of an actor's next request."""

    NOTHING = "nothing"
    FAILS = "fails"
    """It raises a transient error, and has no effect."""
    ANSWER_LOST = "answer lost"
    """It has its effect, and raises a transient error."""
    DIES = "dies"
    """The process is killed before the request."""
    DIES_AFTER = "dies after"
    """The process is killed after the request had its effect."""

    @property
    def kills(self) -> bool:
        """Whether the process dies."""
        return self in {Toxic.DIES, Toxic.DIES_AFTER}


class SeededIds:
    """Draws ids in place of `secrets`."""

    def __init__(self, seed: str) -> None:
        """Two sources of one seed draw the same ids."""
        self._random: Final = Random(seed)

    def token_hex(self, count: int) -> str:
        """Return ``count`` random bytes in hex."""
        return self._random.randbytes(count).hex()


class SimulatedProcess:
    """A worker process, or one of a reader: what its actors share, and lose with it."""

    def __init__(self, name: str, seconds: Callable[[], float]) -> None:
        """``seconds`` is the process's clock, which need not be right."""
        self.name: Final = name
        self.memory: Final = WriterMemory(clock=seconds)
        self.swept: Final = ObjectCache()
        self.dead = False


@attrs.define(eq=False)
class Actor:
    """Runs code of the product on its own thread: a task attempt, a pass of the janitor, a look."""

    name: str
    process: SimulatedProcess
    thread: SteppedThread
    run_key: str = ""
    """The run that it acts for."""
    requests_left: int = 0
    """How many requests it makes before another actor may be chosen."""
    next_request: str = ""
    """The request before which it is stopped."""
    toxic: Toxic = Toxic.NOTHING
    sleeps: bool = False
    """Whether it goes on only when nobody else can."""
    holds_a_pin: bool = False
    """Whether it is a reader that sleeps on a version that it has pinned."""
    was_hurt: bool = False
    """Whether a request of it failed."""
    begun: bool = False
    """Whether it has put its marker."""
    wrote_at: int = -1
    looked_at: int = -1
    newest_seen: str | None = None
    """The run that ranked highest when it last looked for newer runs."""
    wrong: str = ""
    """How what it opened differs from what it has to open."""

    @classmethod
    def running(
        cls, name: str, process: SimulatedProcess, work: Callable[[], object], **fields: Any
    ) -> Actor:
        """Return an actor that will run ``work``, with ids that its name determines."""

        def run() -> object:
            RANDOM.source = SeededIds(fields_of["ids"])
            return work()

        fields_of = {"ids": fields.pop("ids", name)}
        return cls(name, process, SteppedThread(run, name), **fields)

    def stop_at(self, request: str) -> None:
        """Stop before a request, unless the actor may make some more."""
        self.requests_left -= 1
        if self.requests_left < 0:
            self.next_request = request
            self.thread.pause()


class Requests(Protocol):
    """Decides about each request."""

    def requested(self, operation: str, name: str, request: Callable[[], T]) -> T:
        """Make a request for the acting actor, when it is chosen, if it is still alive."""


class ActorStorage(WrappedStorage):
    """The state directory as actors see it."""

    def __init__(self, inner: ObjectStorage, world: Requests) -> None:
        """``world`` makes all requests."""
        super().__init__(inner)
        self.waits = False
        self._world = world

    def around(self, operation: str, name: str, request: Callable[[], T]) -> T:
        return self._world.requested(operation, name, request)
