"""The phases of a subtask in one micro-batch, and the clock that divides its time among them."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final


class Phase(enum.Enum):
    """The activity of a subtask: one at a time, so phases add up."""

    INPUT = "input"
    OPEN = "open"
    DECODE = "decode"
    READ_AHEAD = "read_ahead"
    STATE_WAIT = "state_wait"
    CALL_WAIT = "call_wait"
    FUNCTION = "function"
    OUTPUT = "output"
    OUTPUT_WAIT = "output_wait"
    COMMIT_SNAPSHOT = "commit_snapshot"
    COMMIT_FILES = "commit_files"
    COMMIT_CHECK = "commit_check"
    COMMIT_MANIFEST = "commit_manifest"
    COMMIT_INSTALL = "commit_install"
    REST = "rest"

    # Each wait looks a phase up; the hash of an `Enum` is a call.
    __hash__ = object.__hash__

    @property
    def meaning(self) -> str:
        """One sentence for the documentation."""
        return MEANINGS[self]


MEANINGS: Final[Mapping[Phase, str]] = {
    Phase.INPUT: "Wait for Spark's input: the shuffle, and the transfer to Python.",
    Phase.OPEN: "Open the version: fencing, manifests, the backend, the function's `open`.",
    Phase.DECODE: "Make rows and keys of Arrow batches.",
    Phase.READ_AHEAD: "Read the states of a slice's keys before its records.",
    Phase.STATE_WAIT: "Wait for state while no record can go on.",
    Phase.CALL_WAIT: "Wait for calls to the outside while no record can go on.",
    Phase.FUNCTION: "Run the function, its timers and callbacks, and the engine around them.",
    Phase.OUTPUT: "Make Arrow batches of emitted rows.",
    Phase.OUTPUT_WAIT: "Wait until Spark takes an output batch.",
    Phase.COMMIT_SNAPSHOT: "Call `snapshot_state`, hand over the last writes, and clean up.",
    Phase.COMMIT_FILES: "Write the files of the commit.",
    Phase.COMMIT_CHECK: "Check that no newer run owns the state.",
    Phase.COMMIT_MANIFEST: "Write the manifest. It is not in the manifest itself.",
    Phase.COMMIT_INSTALL: "After the manifest: fill caches, submit compactions, start the "
    "janitor. It is not in the manifest.",
    Phase.REST: "Everything else.",
}
"""Phase → what the subtask does."""


class PhaseClock:
    """Divides the time of one task among phases. Used by one thread at a time.

    A phase may interrupt another one, which continues afterwards; the time counts once, for the
    inner one. So all phases together are the time since the clock was made.
    """

    __slots__ = ("_now", "_phase", "_seconds", "_since")

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        """Begin in `Phase.REST`."""
        self._now = now
        self._phase = Phase.REST
        self._seconds = dict.fromkeys(Phase, 0.0)
        self._since = now()

    def switch(self, phase: Phase) -> Phase:
        """Enter a phase; return the one that it interrupts."""
        now = self._now()
        before = self._phase
        self._seconds[before] += now - self._since
        self._phase, self._since = phase, now
        return before

    def count(self, phase: Phase, seconds: float) -> None:
        """Count the last ``seconds`` for ``phase`` instead of the current phase."""
        self._seconds[phase] += seconds
        self._since += seconds

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Count time for a phase within the context, and then for the previous phase again."""
        before = self.switch(phase)
        try:
            yield
        finally:
            self.switch(before)

    def seconds(self) -> Mapping[str, float]:
        """Return phase → seconds so far, in the order of `Phase`, without phases of no time."""
        self.switch(self._phase)
        return {phase.value: seconds for phase, seconds in self._seconds.items() if seconds}
