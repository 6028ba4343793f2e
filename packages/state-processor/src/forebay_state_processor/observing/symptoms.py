"""Symptoms of trouble that a view of an operator shows; the how-to "on call" has the same ones.

Each rule looks at numbers that are stored, and is silent where they are not known. The thresholds
are conservative: they find what is clearly wrong, not what could be better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Final

import attrs

from forebay_state_processor.observing.evidence import FEWEST_ROWS
from forebay_state_processor.observing.janitor_backlog import CHANGE, janitor_backlog
from forebay_state_processor.observing.quantities import share_text
from forebay_state_processor.observing.slow_writes import SLOW_WRITE_MS, did_more, wrote_little
from forebay_state_processor.observing.watching import VERSIONS

if TYPE_CHECKING:
    from forebay_engine.versions.format.figures import Figures
    from forebay_engine.versions.format.manifest import Manifest
    from forebay_state_processor.observing.figures_of_versions import VersionFigures
    from forebay_state_processor.observing.watching import OperatorView

RECENT: Final = 10
"""The newest versions that rules look at."""
_HOT_SHARE: Final = 0.25
"""A key group with this share of all rows is hot, if it is `_HOT_TIMES` its fair share."""
_HOT_TIMES: Final = 4
_SLOW_COMMIT_MS: Final = 300
"""Milliseconds of the request or two that check who owns the state before a manifest is written.

The write itself is in no manifest and no name.
"""
_FEWEST_VERSIONS: Final = 3
_MANY_RUNS: Final = 10
"""Runs at which a commit compacts itself, by the default of `lsm.max-runs`."""
_MANY_TIMERS: Final = 1_000
_TIMERS_OF_A_KEY: Final = 2
"""New timers for each key of a micro-batch that are in order."""
_GROWN: Final = 1.5
_LARGE_BYTES: Final = 10_000
_TIMERS: Final = "__timer"
"""The beginning of the names of tables that hold timers."""


@attrs.frozen(kw_only=True)
class Symptom:
    """Something that is wrong, with its numbers and what changes it."""

    name: str
    """The name on the page for people on call, such as ``One key is hot``."""
    text: str
    change: str


def symptoms_of(view: OperatorView) -> Sequence[Symptom]:
    """Return the symptoms of an operator, the most urgent first."""
    found = (rule(view) for rule in _RULES)
    return [symptom for symptom in found if symptom is not None]


def _storage_slow(view: OperatorView) -> Symptom | None:
    slow = [text for rule in (_checks_slow, _writes_slow) if (text := rule(view))]
    if not slow:
        return None
    return Symptom(
        name="Storage is slow",
        text=", and ".join(slow),
        change="forebay doctor probes the store; fewer subtasks make fewer requests at once",
    )


def _checks_slow(view: OperatorView) -> str:
    times = [one.phase_ms.get("commit_check", 0) for one in _slowest(view)]
    if len(times) < _FEWEST_VERSIONS or (middle := median(times)) < _SLOW_COMMIT_MS:
        return ""
    return f"the check before a manifest is written takes {middle:,.0f} ms each time"


def _writes_slow(view: OperatorView) -> str:
    little = [one for one in _slowest(view) if wrote_little(one)]
    if len(little) < _FEWEST_VERSIONS or view.busiest is None or did_more(view.busiest):
        return ""
    if max(_runs(view), default=0) >= _MANY_RUNS:  # other commits than that one may compact
        return ""
    middle = median(one.phase_ms.get("commit_files", 0) for one in little)
    written = median(one.counts["written_bytes"] for one in little)
    if middle < SLOW_WRITE_MS:
        return ""
    return f"a commit takes {middle:,.0f} ms to write its {written:,.0f} bytes"


def _slowest(view: OperatorView) -> Sequence[Figures]:
    """Return the figures of the slowest subtask in each recent version."""
    recent = view.timeline.versions[:RECENT]
    return [one.slowest.figures for one in recent if one.slowest is not None]


def _compaction_behind(view: OperatorView) -> Symptom | None:
    counted = _runs(view)
    runs = max(counted, default=0)
    if runs < _MANY_RUNS:
        return None
    pending = view.timeline.versions[0].count("compactions_pending")
    waiting = "" if pending is None else f", and {pending} compactions have no result"
    return Symptom(
        name="Compaction is behind",
        text=f"a key was looked up in up to {runs} runs in the last {len(counted)} versions"
        f"{waiting}",
        change="more CPU for the executors, or spark.forebay.compaction.service=ray",
    )


def _runs(view: OperatorView) -> Sequence[int]:
    """Return the most runs of a subtask in each recent version that knows them."""
    recent = view.timeline.versions[:RECENT]
    return [runs for one in recent if (runs := one.count("runs_max")) is not None]


def _janitor_behind(view: OperatorView) -> Symptom | None:
    text = janitor_backlog(view.listing)
    if text is None:
        return None
    return Symptom(name="The janitor is behind", text=text, change=CHANGE)


def _hot_key(view: OperatorView) -> Symptom | None:
    hot, newest = view.hot_key_groups(1), view.newest
    if newest is None or hot is None or not hot.rows:
        return None
    ((group, rows),) = hot.rows.items()
    every = newest.count("rows_in") or 0
    share = rows / every if every else 0.0
    if rows < FEWEST_ROWS or share < max(_HOT_SHARE, _HOT_TIMES / newest.max_parallelism):
        return None
    return Symptom(
        name="One key is hot",
        text=f"key group {group} had {rows:,} of the {every:,} rows of batch {newest.batch} "
        f"({share_text(share)})",
        change="split the key, or reduce before keyed()",
    )


def _timers_leak(view: OperatorView) -> Symptom | None:
    recent = view.timeline.versions[:RECENT]
    added, fired = _sum(recent, "timers_added"), _sum(recent, "timers_fired")
    touched = _sum(recent, "keys_touched")
    if added is None or fired is None or not touched:
        return None
    # A window, a session or a reminder is a timer or two for each key.
    if added < _MANY_TIMERS or 2 * fired >= added or added <= _TIMERS_OF_A_KEY * touched:
        return None
    return Symptom(
        name="Timers leak",
        text=f"{added:,} timers were added and {fired:,} fired in the last {len(recent)} versions, "
        f"{added / touched:.1f} new ones for each key of a micro-batch",
        change="replace timers instead of adding them: ctx.timers.replace_event_time",
    )


def _state_grows(view: OperatorView) -> Symptom | None:
    manifest, versions = view.busiest, view.timeline.versions[:VERSIONS]
    if manifest is None:
        return None
    without = _states_without_ttl(manifest)
    sizes = [size for one in versions if (size := one.count("state_bytes")) is not None]
    if len(sizes) < _FEWEST_VERSIONS:
        return None
    only_grows = all(newer >= older for newer, older in pairwise(sizes))
    if not (without and only_grows) or sizes[0] < max(_LARGE_BYTES, _GROWN * sizes[-1]):
        return None
    return Symptom(
        name="State grows",
        text=f"it grew from {sizes[-1]:,} to {sizes[0]:,} bytes in {len(sizes)} versions and "
        f"never shrank; without a time to live: {', '.join(without)}",
        change="a time to live for these states: StateTtlConfig",
    )


def _states_without_ttl(manifest: Manifest) -> Sequence[str]:
    return sorted(
        name
        for name, description in manifest.descriptions.items()
        if not (name.startswith(_TIMERS) or description.get("ttl"))
    )


def _sum(versions: Sequence[VersionFigures], key: str) -> int | None:
    counts = [one.count(key) for one in versions]
    return None if not counts or None in counts else sum(count or 0 for count in counts)


_RULES: Final[Sequence[Callable[[OperatorView], Symptom | None]]] = (
    _storage_slow,
    _compaction_behind,
    _janitor_behind,
    _hot_key,
    _timers_leak,
    _state_grows,
)
"""The rules, by urgency."""
