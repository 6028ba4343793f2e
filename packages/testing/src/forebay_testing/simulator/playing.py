"""Play a seed, or given decisions, and report what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from forebay_testing.simulator.choices import Choices, text_of
from forebay_testing.simulator.oracle import Violation
from forebay_testing.simulator.shrinking import MOST_TRIES, shrunk
from forebay_testing.simulator.world import STEPS, World

if TYPE_CHECKING:
    from forebay_testing.simulator.trace import Trace


@attrs.frozen(kw_only=True)
class Played:
    """One simulation, played to its end or to the broken promise."""

    seed: int
    decisions: Sequence[int]
    trace: Trace
    attempts: int
    """The number of task attempts."""
    violation: Violation | None

    @property
    def text(self) -> str:
        """The decisions as text."""
        return text_of(self.decisions)

    def plain(self) -> dict[str, Any]:
        """Return the broken promise and how to repeat it, as plain data."""
        return {
            "seed": self.seed,
            "kind": "" if self.violation is None else self.violation.kind,
            "message": str(self.violation or ""),
            "decisions": self.text,
            "trace": [*self.trace.lines()],
        }


def play(seed: int, *, steps: int = STEPS, decisions: Sequence[int] | None = None) -> Played:
    """Play a seed, or given ``decisions`` with the ids of the seed."""
    choices = Choices.of_seed(seed) if decisions is None else Choices(None, decisions)
    world = World(choices, seed, steps)
    violation = None
    try:
        world.play()
    except Violation as broken:
        violation = broken
    return Played(
        seed=seed,
        decisions=choices.made,
        trace=world.trace,
        attempts=world.attempts,
        violation=violation,
    )


def shrink(failed: Played, steps: int = STEPS, most: int = MOST_TRIES) -> Played:
    """Return a simulation with fewer decisions that breaks the same promise."""
    assert failed.violation is not None
    kind = failed.violation.kind

    def fails(decisions: Sequence[int]) -> bool:
        played = play(failed.seed, steps=steps, decisions=decisions)
        return played.violation is not None and played.violation.kind == kind

    return play(failed.seed, steps=steps, decisions=shrunk(failed.decisions, fails, most))
