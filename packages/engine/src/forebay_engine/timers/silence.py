"""Silence: how far each input is, and for how long it has had no event times.

An input holds the watermark at its mark until it has been silent for ``idle_after``. When every
input has been, the watermark is the mark of the one that spoke last, plus its silence. A
micro-batch without event times of an input adds to its silence the time that has passed since the
micro-batch before it; each step is at most ``idle_after``, because a machine that was suspended
was not silent.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from forebay_engine.timers.watermark import ALWAYS, FIRST_US, LAST_US, TimerClocks
from forebay_state_api.contract.backend import NO_TIME


@attrs.frozen
class InputSilence:
    """One input as it is after a version; in µs."""

    mark_us: int
    """Up to where its event times are complete; `ALWAYS` before the first one."""
    silent_us: int
    """The sum of its silent steps since its last event time."""


def inputs_after(
    everyone: Sequence[TimerClocks], lateness_us: Sequence[int], idle_after_us: int
) -> list[InputSilence]:
    """Return the inputs after a version, of which ``everyone`` are the clocks of all subtasks."""
    marks, silences = _before(everyone, len(lateness_us))
    step_us = _step_us(everyone, idle_after_us)
    found = []
    for side, lateness in enumerate(lateness_us):
        times = [one.seen_us[side] for one in everyone if _has(one.active, side)]
        spoke = bool(times) or any(_has(one.only_ahead, side) for one in everyone)
        seen_us = max(min(times) - lateness, FIRST_US) if times else ALWAYS
        silent_us = 0 if spoke else silences[side] + step_us
        found.append(InputSilence(max(marks[side], seen_us), silent_us))
    return found


def watermark_of(inputs: Sequence[InputSilence], idle_after_us: int) -> int:
    """Return the watermark by the inputs alone; it may be before an earlier one."""
    holding = [one.mark_us for one in inputs if one.silent_us < idle_after_us]
    if holding:
        return min(holding)
    marked = [one for one in inputs if one.mark_us != ALWAYS]
    silent_us = min((one.silent_us for one in marked), default=0)
    last = [one.mark_us for one in marked if one.silent_us == silent_us]
    return min(min(last, default=ALWAYS) + silent_us, LAST_US)


def _before(everyone: Sequence[TimerClocks], sides: int) -> tuple[list[int], list[int]]:
    """Return each input's mark and silence with which the version's micro-batch began.

    A version without them was made without ``idle_after``: there its watermark was every input's
    mark, and nothing was silent.
    """
    known = next((one for one in everyone if one.silent_us), None)
    watermark_us = max((one.watermark_us for one in everyone), default=ALWAYS)
    marks = [watermark_us] * sides
    silences = [0] * sides
    if known is not None:
        pairs = zip(range(sides), known.marks_us, known.silent_us, strict=False)
        for side, mark_us, silent_us in pairs:
            marks[side], silences[side] = mark_us, silent_us
    return marks, silences


def _step_us(everyone: Sequence[TimerClocks], most_us: int) -> int:
    """Return the time between the version's micro-batch and the one before it, of its run."""
    before_us = max((one.before_us for one in everyone), default=NO_TIME)
    now_us = max((one.now_us for one in everyone), default=NO_TIME)
    if NO_TIME in {before_us, now_us}:
        return 0
    return min(max(now_us - before_us, 0), most_us)


def _has(flags: Sequence[bool], side: int) -> bool:
    return side < len(flags) and flags[side]
