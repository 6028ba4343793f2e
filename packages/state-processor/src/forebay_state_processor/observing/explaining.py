"""Explains one micro-batch: its slowest phase, the subtask, the cause, and what changes it."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_state_processor.observing.causes import cause_of, meaning_of
from forebay_state_processor.observing.evidence import Evidence
from forebay_state_processor.observing.quantities import seconds_text, share_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from forebay_state_processor.observing.timeline import Timeline

_MUCH_SLOWER: Final = 1.5
"""A batch that took the usual time multiplied by this has a phase that grew."""
_CLEARED: Final = (
    " Its manifest was cleared, so the cause rests on the few figures that the history keeps."
)


@attrs.frozen(kw_only=True)
class Explanation:
    """The explanation of the duration of a micro-batch."""

    batch: int
    subtask: int
    """The subtask that took longest."""
    phase: str
    """The slowest phase; if the batch was much slower than usual, the phase that grew most."""
    seconds: float
    """Time of the subtask."""
    phase_seconds: float
    """Time of the phase in it."""
    cause: str
    change: str
    """The setting that changes it, or what else does."""
    numbers: Mapping[str, Any]
    """The numbers behind the explanation, by name; an unknown number is ``None``."""

    @property
    def text(self) -> str:
        """One paragraph."""
        others = self.numbers["other_subtasks_s"]
        usual = self.numbers["usual_s"]
        compared = [
            "" if others is None else f"the other subtasks {seconds_text(others)} at the median",
            "" if usual is None else f"other micro-batches {seconds_text(usual)}",
        ]
        beside = "; ".join(filter(None, compared))
        grown = self.numbers["usual_phase_s"]
        before = "" if grown is None else f", usually {seconds_text(grown)}"
        took, of_phase = seconds_text(self.seconds), seconds_text(self.phase_seconds)
        percent = share_text(self.phase_seconds, self.seconds or 1)
        return (
            f"Batch {self.batch} took {took} in subtask {self.subtask}, its slowest"
            f"{f' ({beside})' if beside else ''}. Of this, {of_phase} ({percent}"
            f"{before}) is the phase {self.phase}: {_lower(meaning_of(self.phase))} "
            f"The likely cause: {self.cause}. What changes it: {self.change}."
            f"{'' if self.numbers['manifest_is_stored'] else _CLEARED}"
        )


def explain(evidence: Evidence) -> Explanation:
    """Explain a micro-batch."""
    phase = evidence.phase
    usual = evidence.usual_ms
    if usual is not None and evidence.total_ms >= _MUCH_SLOWER * usual:
        phase = evidence.grown or phase
    cause = cause_of(phase, evidence)
    return Explanation(
        batch=evidence.version.batch,
        subtask=evidence.slowest.subtask,
        phase=phase,
        seconds=evidence.total_ms / 1_000,
        phase_seconds=evidence.phase_ms[phase] / 1_000,
        cause=cause.cause,
        change=cause.change,
        numbers=_numbers(evidence, phase),
    )


def slowest_of(timeline: Timeline, most: int) -> int | None:
    """Return the micro-batch that took longest among the newest ``most``; ``None`` if none did.

    The first one after a start opens its state and loads the function, so others are preferred.
    """
    versions = timeline.versions[:most]
    timed = [one for one in versions if one.slowest_ms is not None]
    starts = {
        newer.version
        for newer, older in pairwise(timeline.versions)
        if newer.run_key != older.run_key
    }
    timed = [one for one in timed if one.version > 1 and one.version not in starts] or timed
    return max(timed, key=lambda one: one.slowest_ms or 0).batch if timed else None


def _numbers(evidence: Evidence, phase: str) -> dict[str, Any]:
    hot = evidence.hottest_group
    return {
        "usual_s": _seconds(evidence.usual_ms),
        "usual_phase_s": _seconds(evidence.usual_phase_ms(phase)),
        "other_subtasks_s": _seconds(evidence.other_subtasks_ms),
        "compared_with": len(evidence.others),
        "phase_ms": dict(evidence.phase_ms),
        "rows_over_mean": evidence.share_of_rows,
        "hottest_key_group": None if hot is None else {"group": hot[0], "rows": hot[1]},
        "manifest_is_stored": evidence.manifest is not None,
        "figures": dict(evidence.figures),
    }


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1_000


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]
