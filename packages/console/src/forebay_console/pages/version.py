"""One version: the figures of each subtask, and its time by phase."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from forebay_console.charts import stacked
from forebay_console.pages.phase_families import FAMILIES, NAMES, by_family, family_of
from forebay_console.watching.summaries import VersionSummary
from forebay_state_api.metrics import KEYED, Phase
from forebay_state_processor.observing import Timeline
from forebay_state_processor.observing.evidence import Evidence
from forebay_state_processor.observing.explaining import Explanation, explain
from forebay_state_processor.observing.quantities import milliseconds_text

if TYPE_CHECKING:
    from forebay_console.watching import OperatorView
    from forebay_state_processor.observing import SubtaskFigures, VersionFigures

_NUMBER: Final = re.compile(r"[0-9]{1,15}")
"""The number of a version, with as many digits as storage has at most."""
_SUBTASKS: Final = 200
"""The most rows of the table; the slowest come first."""
_COMPARED: Final = 100
"""Versions that a version is compared with: the newest ones, and the one before it."""
_MEANINGS: Final = {metric.key: metric.meaning for metric in KEYED}


def version_number(text: str) -> int | None:
    """Return the number of a version in an address; ``None`` if the text is no number."""
    return int(text) if _NUMBER.fullmatch(text) else None


def version(operator: OperatorView, number: int) -> Mapping[str, Any] | None:
    """Return the values for the template; ``None`` if nothing is known of the version."""
    versions = operator.timeline.versions
    at = next((at for at, one in enumerate(versions) if one.version == number), None)
    if at is None:
        return None
    found = versions[at]
    summary = VersionSummary.of(found)
    order = sorted(found.subtasks, key=lambda one: -(one.figures.total_ms or 0))[:_SUBTASKS]
    return {
        "version": found,
        "summary": summary,
        "explanation": _explanation(operator, at),
        "newer": versions[at - 1].version if at else None,
        "older": versions[at + 1].version if at + 1 < len(versions) else None,
        "stored": operator.is_stored(found),
        "phases": _phases(summary),
        "counts": [
            {"key": key, "number": number, "meaning": _MEANINGS.get(key, _OTHERS.get(key, ""))}
            for key, number in summary.counts.items()
        ],
        "subtasks": order,
        "more": len(found.subtasks) - len(order),
        "chart": _chart(found),
        "times": [(one, by_family(one.figures.phase_ms)) for one in found.subtasks[:_SUBTASKS]],
        "legend": FAMILIES,
    }


_OTHERS: Final = {
    "files": "Files that the version is read from.",
    "puts_and_lists": "Requests to storage that put an object or list some.",
    "gets": "Requests to storage that read an object, or a range of one.",
}


def _explanation(operator: OperatorView, at: int) -> Explanation | None:
    """Explain the time of the version at an index of the timeline.

    ``None`` if it was not measured.
    """
    versions = operator.timeline.versions
    found = versions[at]
    if found.slowest is None:
        return None
    old = versions[max(at, _COMPARED) : at + 2]
    compared = Timeline(versions=[*versions[:_COMPARED], *old])
    manifest = next(iter(operator.manifests_named([found.slowest.manifest])), None)
    evidence = Evidence.of(found, compared, manifest)
    return None if evidence is None else explain(evidence)


def _phases(summary: VersionSummary) -> Sequence[Mapping[str, Any]]:
    total = sum(summary.phase_ms.values())
    return [
        {
            "name": phase,
            "family": family_of(phase).name,
            "ms": ms,
            "share": ms / total,
            "meaning": Phase(phase).meaning,
        }
        for phase, ms in sorted(summary.phase_ms.items(), key=lambda one: -one[1])
    ]


def _chart(found: VersionFigures) -> Any:
    if not found.phase_ms:
        return None
    shown = found.subtasks[:_SUBTASKS]
    times = [by_family(one.figures.phase_ms) for one in shown]
    return stacked(times, NAMES, [_tip(one) for one in shown], [None] * len(shown))


def _tip(one: SubtaskFigures) -> str:
    times = by_family(one.figures.phase_ms)
    parts = [
        f"{family.title} {milliseconds_text(times[family.name])}"
        for family in FAMILIES
        if times.get(family.name, 0) >= 1
    ]
    total = milliseconds_text(one.figures.total_ms)
    return "\n".join([f"subtask {one.subtask}: {total}", *parts])
