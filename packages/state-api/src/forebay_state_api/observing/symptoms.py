"""Symptoms of trouble that a view of an operator shows; the how-to "on call" has the same ones.

Each rule looks at numbers that are stored, and is silent where they are not known. The thresholds
are beginnings: they find what is clearly wrong, not what could be better.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from forebay_state_api.observing.figures_of_versions import VersionFigures
    from forebay_state_api.observing.watching import OperatorView
    from forebay_state_api.versions.manifest import Manifest

RECENT: Final = 10
"""The newest versions that rules look at."""
_HOT_SHARE: Final = 0.25
"""A key group with this share of all rows is hot, if it is `_HOT_TIMES` its fair share."""
_HOT_TIMES: Final = 4
_HOT_ROWS: Final = 1_000
_SLOW_COMMIT_MS: Final = 300
"""Milliseconds of the few requests that check and write a manifest."""
_FEWEST_VERSIONS: Final = 3
_MANY_RUNS: Final = 10
"""Runs at which a commit compacts itself, by the default of `lsm.max-runs`."""
_MANY_TIMERS: Final = 1_000
_GROWN: Final = 1.5
_LARGE_BYTES: Final = 10_000
_TIMERS: Final = "__timer"
"""The beginning of the names of tables that hold timers."""


@attrs.frozen(kw_only=True)
class Symptom:
    """Something that is wrong, with its numbers and what changes it."""

    name: str
    """As on the page: ``One key is hot``."""
    text: str
    change: str


def symptoms_of(view: OperatorView) -> Sequence[Symptom]:
    """Return the symptoms of an operator, those that need attention first."""
    found = (rule(view) for rule in _RULES)
    return [symptom for symptom in found if symptom is not None]


def _storage_slow(view: OperatorView) -> Symptom | None:
    times = [
        sum(one.slowest.figures.phase_ms.get(p, 0) for p in ("commit_check", "commit_manifest"))
        for one in view.timeline.versions[:RECENT]
        if one.slowest is not None
    ]
    if len(times) < _FEWEST_VERSIONS or (middle := median(times)) < _SLOW_COMMIT_MS:
        return None
    return Symptom(
        name="Storage is slow",
        text=f"the few requests that check and write a manifest take {middle:,.0f} ms each time",
        change="forebay doctor probes the store; fewer subtasks make fewer requests at once",
    )


def _compaction_behind(view: OperatorView) -> Symptom | None:
    recent = view.timeline.versions[:RECENT]
    runs = max((one.count("runs_max") or 0 for one in recent), default=0)
    if runs < _MANY_RUNS:
        return None
    return Symptom(
        name="Compaction is behind",
        text=f"a key was looked up in up to {runs} runs in the last {len(recent)} versions, and "
        f"{recent[0].count('compactions_pending') or 0} compactions have no result",
        change="more CPU for the executors, or spark.forebay.compaction.service=ray",
    )


def _hot_key(view: OperatorView) -> Symptom | None:
    hot, newest = view.hot_key_groups(1), view.newest
    if newest is None or hot is None or not hot.rows:
        return None
    ((group, rows),) = hot.rows.items()
    every = newest.count("rows_in") or 0
    share = rows / every if every else 0.0
    if rows < _HOT_ROWS or share < max(_HOT_SHARE, _HOT_TIMES / newest.max_parallelism):
        return None
    return Symptom(
        name="One key is hot",
        text=f"key group {group} had {rows:,} of the {every:,} rows of batch {newest.batch} "
        f"({100 * share:.0f} %)",
        change="split the key, or reduce before keyed()",
    )


def _timers_leak(view: OperatorView) -> Symptom | None:
    registered = _sum(view.timeline.versions[:RECENT], "timers_registered")
    fired = _sum(view.timeline.versions[:RECENT], "timers_fired")
    if registered is None or fired is None:
        return None
    if registered < _MANY_TIMERS or 2 * fired >= registered:
        return None
    return Symptom(
        name="Timers leak",
        text=f"{registered:,} timers were registered and {fired:,} fired in the last "
        f"{len(view.timeline.versions[:RECENT])} versions",
        change="replace timers instead of adding them: ctx.timers.replace_event_time",
    )


def _state_grows(view: OperatorView) -> Symptom | None:
    manifest, versions = view.busiest, view.timeline.versions
    if manifest is None or len(versions) < _FEWEST_VERSIONS:
        return None
    without = _states_without_ttl(manifest)
    sizes = [one.count("state_bytes") or 0 for one in versions]
    only_grows = all(newer >= older for newer, older in pairwise(sizes))
    if not (without and only_grows) or sizes[0] < max(_LARGE_BYTES, _GROWN * sizes[-1]):
        return None
    return Symptom(
        name="State grows",
        text=f"it grew from {sizes[-1]:,} to {sizes[0]:,} bytes in {len(versions)} versions and "
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
    _hot_key,
    _timers_leak,
    _state_grows,
)
"""The rules, by urgency."""
