"""The steps of a simulation, as lines for people and as a digest."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import attrs

from forebay_state_api.contract.file_names import version_of

if TYPE_CHECKING:
    from forebay_testing.clock import ManualClock

_VERSION: Final = re.compile(r"(?<=/)[0-9a-f]{12}(?=/|$)")
_RUN: Final = re.compile(r"\b[0-9a-f]{16}\b")
_ID: Final = re.compile(r"\b[0-9a-f]{24}\b")
_SHOWN: Final = 6
"""Characters of a random id that are shown."""


@attrs.frozen
class Step:
    """One request, or one event."""

    seconds: float
    actor: str
    what: str
    answer: str = ""


class Trace:
    """The steps of one simulation."""

    def __init__(self, clock: ManualClock) -> None:
        """``clock`` is the simulation's."""
        self._clock: Final = clock
        self._begun: Final = clock.now
        self.steps: Final[list[Step]] = []
        self._runs: dict[str, str] = {}

    def name_run(self, run_key: str, name: str) -> None:
        """Show a run by a name in place of its key."""
        self._runs[run_key] = name

    def add(self, actor: str, what: str, answer: str = "") -> None:
        """Add a step at the clock's time."""
        seconds = (self._clock.now - self._begun).total_seconds()
        self.steps.append(Step(seconds, actor, what, answer))

    @property
    def digest(self) -> str:
        """A digest of all steps: two simulations with the same one did the same."""
        text = "\n".join(f"{s.seconds} {s.actor} {s.what} {s.answer}" for s in self.steps)
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def lines(self) -> Iterator[str]:
        """Yield the steps as lines for people, with version numbers and short ids."""
        for number, step in enumerate(self.steps, 1):
            hours, seconds = divmod(step.seconds, 3_600)
            at = f"{hours:.0f}:{seconds // 60:02.0f}:{seconds % 60:04.1f}"
            answer = step.answer and f" -> {step.answer}"
            yield f"{number:5} {at:>10}  {step.actor:16} {self._shown(step.what)}{answer}"

    def _shown(self, what: str) -> str:
        what = _VERSION.sub(lambda found: f"v{version_of(found[0])}", what)
        what = _ID.sub(lambda found: f"{found[0][:_SHOWN]}…", what)
        return _RUN.sub(lambda found: self._runs.get(found[0], found[0]), what)
