"""An operator's first page: its versions over time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_console.charts import Bars, bars, stacked
from forebay_console.pages.columns import Column, columns_of
from forebay_console.pages.overview import path_of
from forebay_console.pages.phase_families import FAMILIES, NAMES, Family
from forebay_state_api.errors import ForebayError
from forebay_state_processor.observing import symptoms_of
from forebay_state_processor.observing.quantities import (
    ABSENT,
    milliseconds_text,
    short_text,
    size_text,
)

if TYPE_CHECKING:
    from forebay_console.watching import OperatorView

WINDOWS: Final = (60, 300, 1_000)
"""Numbers of versions that a viewer may choose."""
_TABLE: Final = 20
"""The most rows of the table."""


@attrs.frozen(kw_only=True)
class Chart:
    """A chart with its axes."""

    title: str
    about: str
    """A sentence that describes the plot."""
    bars: Bars
    ticks: Sequence[str]
    """Labels of the axis, the highest first."""
    legend: Sequence[tuple[str, str]] = ()
    """Class and name of each kind."""


def timeline(operator: OperatorView, last: int) -> Mapping[str, Any]:
    """Return the values of the newest ``last`` versions for the template."""
    recent = operator.recent(last)
    columns = columns_of(recent)
    return {
        "windows": WINDOWS,
        "last": last,
        "versions": recent[:_TABLE],
        "shown": len(recent),
        "columns": columns,
        "families": _families(columns),
        "made": operator.listing.in_progress,
        **_symptoms(operator),
        "costs": operator.request_costs,
        "abandoned": len(operator.timeline.abandoned),
        "charts": [chart for chart in _charts(operator, columns) if chart is not None],
    }


def _symptoms(operator: OperatorView) -> Mapping[str, Any]:
    """Return the symptoms, or why they are unknown: unlike the page, they need a manifest."""
    try:
        return {"symptoms": symptoms_of(operator), "problem": ""}
    except ForebayError as error:
        return {"symptoms": (), "problem": str(error)}


def _charts(operator: OperatorView, columns: Sequence[Column]) -> Sequence[Chart | None]:
    return (
        _times(operator, columns),
        _counts(columns, "rows_in", "Rows in", "Rows of a micro-batch.", short_text),
        _counts(columns, "rows_out", "Rows out", "Rows that the operator emitted.", short_text),
        _counts(columns, "state_bytes", "State", "Size of the version.", size_text),
        _counts(columns, "written_bytes", "Written", "Bytes that the commit wrote.", size_text),
    )


def _times(operator: OperatorView, columns: Sequence[Column]) -> Chart | None:
    times = [column.family_ms for column in columns]
    if not any(times):
        return None
    tips = [_tip(column, column.family_ms) for column in columns]
    links = [f"{path_of(operator.stored)}/versions/{column.newest.version}" for column in columns]
    drawn = stacked(times, NAMES, tips, links)
    return Chart(
        title="Time by phase",
        about="The time of a subtask in a micro-batch, on average over the subtasks.",
        bars=drawn,
        ticks=[milliseconds_text(tick) for tick in drawn.scale.ticks],
        legend=[(one.name, one.title) for one in _families(columns)],
    )


def _families(columns: Sequence[Column]) -> Sequence[Family]:
    """Return the families of phases that took any time."""
    present = {name for column in columns for name in column.family_ms}
    return [family for family in FAMILIES if family.name in present]


def _tip(column: Column, family_ms: Mapping[str, float]) -> str:
    parts = [
        f"{family.title} {milliseconds_text(family_ms[family.name])}"
        for family in FAMILIES
        if family_ms.get(family.name, 0) >= 1
    ]
    total = milliseconds_text(sum(family_ms.values()))
    return "\n".join([f"{column.name}: {total}", *parts])


def _counts(
    columns: Sequence[Column], name: str, title: str, about: str, shown: Callable[[float], str]
) -> Chart | None:
    numbers = [column.mean(name) for column in columns]
    if all(number is None for number in numbers):
        return None
    tips = [
        f"{column.name}: {ABSENT if number is None else shown(number)}"
        for column, number in zip(columns, numbers, strict=True)
    ]
    drawn = bars([number or 0.0 for number in numbers], name, tips)
    return Chart(
        title=title, about=about, bars=drawn, ticks=[shown(tick) for tick in drawn.scale.ticks]
    )
