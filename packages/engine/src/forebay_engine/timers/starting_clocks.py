"""The clocks with which a micro-batch begins, from the version before it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import attrs

from forebay_engine.timers.silence import inputs_after, watermark_of
from forebay_engine.timers.watermark import ALWAYS, FIRST_US, NEVER, TimerClocks
from forebay_engine.versions.format.timer_tables import DOMAINS
from forebay_state_api.contract.backend import NO_TIME

if TYPE_CHECKING:
    from forebay_engine.timers.event_times import EventTimeRules
    from forebay_engine.versions.operator import TaskVersion


def times_of(
    making: TaskVersion | None, *, now_us: int, rules: EventTimeRules | None
) -> TimerClocks:
    """Return the clocks with which a micro-batch begins.

    ``rules`` are those of its event times, ``None`` without them. A subtask that does not know the
    time (``now_us`` is `NO_TIME`) uses the latest time in the version.
    """
    sides = 0 if rules is None else len(rules.lateness_us)
    if making is None or not making.is_restored:
        new = TimerClocks(now_us=now_us, seen_us=[ALWAYS] * sides, next_us=(NEVER, NEVER))
        return _with_silence(new, [], rules, continues=False)
    own = [TimerClocks.loaded(manifest.times) for manifest in making.manifests]
    next_us = [min(one.next_us[number] for one in own) for number in range(len(DOMAINS))]
    everyone: list[TimerClocks] = []
    if rules is not None or (now_us == NO_TIME and next_us[1] < NEVER):
        everyone = [TimerClocks.loaded(times) for times in making.every_times()]
    times = TimerClocks(
        now_us=now_us if now_us != NO_TIME else _latest([one.now_us] for one in everyone),
        watermark_us=_watermark(everyone, () if rules is None else rules.lateness_us),
        seen_us=[_latest(one.seen_us[side : side + 1] for one in own) for side in range(sides)],
        next_us=next_us,
        lists=all(one.lists for one in own),
    )
    return _with_silence(times, everyone, rules, continues=making.continues_run)


def _with_silence(
    times: TimerClocks,
    everyone: Sequence[TimerClocks],
    rules: EventTimeRules | None,
    *,
    continues: bool,
) -> TimerClocks:
    """Return ``times`` with the watermark by the marks and the silence of inputs."""
    if rules is None or rules.idle_after_us is None:
        return times
    inputs = inputs_after(everyone, rules.lateness_us, rules.idle_after_us)
    return attrs.evolve(
        times,
        watermark_us=max(_before(everyone), watermark_of(inputs, rules.idle_after_us)),
        marks_us=[one.mark_us for one in inputs],
        silent_us=[one.silent_us for one in inputs],
        before_us=_latest([one.now_us] for one in everyone) if continues else NO_TIME,
    )


def _watermark(everyone: Sequence[TimerClocks], lateness_us: Sequence[int]) -> int:
    marks = [
        max(seen_us - lateness_us[side], FIRST_US)
        for one in everyone
        for side, (seen_us, active) in enumerate(zip(one.seen_us, one.active, strict=True))
        if active and side < len(lateness_us)
    ]
    return max(_before(everyone), min(marks, default=ALWAYS))


def _before(everyone: Sequence[TimerClocks]) -> int:
    """Return the watermark of the version's micro-batch."""
    # Older state may contain a watermark before the year 1.
    before = [max(us, FIRST_US) for one in everyone if (us := one.watermark_us) != ALWAYS]
    return max(before, default=ALWAYS)


def _latest(parts: Iterable[Sequence[int]]) -> int:
    return max((seen_us for part in parts for seen_us in part), default=ALWAYS)
