"""The first page: all operators of the state directory, with what each does now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_console.charts import stacked
from forebay_console.pages.columns import Column, columns_of
from forebay_console.pages.phase_families import NAMES
from forebay_state_processor.observing import StoredOperator, Timeline
from forebay_state_processor.observing.directory import seen

if TYPE_CHECKING:
    from datetime import datetime

    from markupsafe import Markup

    from forebay_console.pages.faults import Faults
    from forebay_console.watching import OperatorView, StateDirectory
    from forebay_console.watching.summaries import VersionSummary

_RECENT: Final = 40
_PATIENCE: Final = 5.0
"""An operator is idle when it is silent for this many of its usual intervals, and a moment."""
_MOMENT_S: Final = 30.0


@attrs.frozen(kw_only=True)
class OperatorRow:
    """One operator, as the overview and the head of its own pages show it."""

    query: str
    uid: str
    """Empty for the operators of a query that cannot be listed."""
    path: str
    status: str
    """``running``, ``idle``, ``begun``, ``empty``, or ``unknown`` if its folder cannot be read."""
    newest: VersionSummary | None = None
    rows_rate: float | None = None
    growth: float | None = None
    """Bytes per second."""
    recent: Markup | None = None
    """The newest versions' times, as a small chart."""
    shortest_ms: float | None = None
    """The lowest bar of the chart."""
    longest_ms: float | None = None
    problem: str = ""


def overview(directory: StateDirectory, now: datetime, faults: Faults) -> Mapping[str, Any]:
    """Return the values for the template."""
    looks = directory.looks()
    unlisted = [_unlisted(query, error, faults) for query, error in looks.unlisted.items()]
    operators = [_row(*look, now, faults) for look in looks.operators.items()]
    rows = sorted([*unlisted, *operators], key=lambda row: (row.query, row.uid))
    return {
        "operators": rows,
        "count": len(operators),
        "queries": len({row.query for row in rows}),
    }


def _row(
    stored: StoredOperator, found: OperatorView | Exception, now: datetime, faults: Faults
) -> OperatorRow:
    """Return an operator's row; an error in one operator does not affect the others."""
    try:
        return row_of(seen(found), now)
    except Exception as error:  # noqa: BLE001 - a damaged name, a credential without rights
        problem = faults.problem(stored.folder, error)
        return attrs.evolve(_names(stored), problem=problem)


def _unlisted(query: str, error: Exception, faults: Faults) -> OperatorRow:
    """Return the row of a query whose operators could not be listed."""
    problem = faults.problem(query, error)
    return OperatorRow(query=query, uid="", path="", status="unknown", problem=problem)


def row_of(operator: OperatorView, now: datetime) -> OperatorRow:
    """Return an operator's row. Raises the errors of storage."""
    timeline = _recent(operator)
    recent = operator.recent(_RECENT)
    columns = columns_of(recent, _RECENT)
    times = [sum(column.family_ms.values()) for column in columns if column.family_ms]
    return attrs.evolve(
        _names(operator.stored),
        status=_status(operator, now),
        newest=recent[0] if recent else None,
        rows_rate=timeline.rate("rows_in"),
        growth=timeline.growth("state_bytes"),
        recent=_spark(columns) if times else None,
        shortest_ms=min(times, default=None),
        longest_ms=max(times, default=None),
    )


def _recent(operator: OperatorView) -> Timeline:
    """Return the newest part of the timeline: what the operator does now."""
    return Timeline(versions=operator.timeline.versions[:_RECENT])


def path_of(stored: StoredOperator) -> str:
    """Return the path of an operator's pages."""
    return f"/operators/{stored.folder}"


def _names(stored: StoredOperator) -> OperatorRow:
    return OperatorRow(query=stored.query, uid=stored.uid, path=path_of(stored), status="unknown")


def _status(operator: OperatorView, now: datetime) -> str:
    timeline = _recent(operator)
    newest = timeline.newest
    begun = operator.listing.begun()
    if newest is None:
        return "begun" if begun else "empty"
    since = max([newest.committed, *begun.values()])
    usual = median(timeline.seconds_between() or [0.0])
    silent = (now - since).total_seconds()
    return "running" if silent < _PATIENCE * usual + _MOMENT_S else "idle"


def _spark(columns: Sequence[Column]) -> Markup:
    tips = [column.name for column in columns]
    return stacked([c.family_ms for c in columns], NAMES, tips, [None] * len(columns)).svg
