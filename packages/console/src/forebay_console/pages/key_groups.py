"""The heat map of the distribution of bytes, files and rows over key groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_console.charts import Cell, grid
from forebay_console.pages.csv_text import csv_text
from forebay_state_api.keys import KeyGroupRange
from forebay_state_processor.observing import KeyGroups, key_groups_of
from forebay_state_processor.observing.quantities import count_text, size_text

if TYPE_CHECKING:
    from markupsafe import Markup

    from forebay_console.watching import OperatorView
    from forebay_engine.versions.format.layout import Coordinates
    from forebay_engine.versions.format.manifest import Manifest

_SQUARES: Final = 2_048
"""The largest number of cells of the heat map."""
_WIDEST: Final = 64
"""Cells in a row."""
_HOTTEST: Final = 20
"""The number of rows in the table of the hottest key groups."""
_ROWS: Final = 512
"""The largest number of rows of the map's table; larger maps are served as CSV alone."""


@attrs.frozen
class Measure:
    """A number of each key group."""

    name: str
    title: str
    about: str
    shown: Callable[[float | None], str]
    together: Callable[[Sequence[float]], float]
    """Combines the numbers of neighbours that share a cell."""


_CELLS_MEANING: Final = "Cells in files, also those that newer files replace; in equal parts."

MEASURES: Final = (
    Measure("rows", "Heat", "Rows of the newest micro-batch.", count_text, sum),
    Measure("bytes", "Size", "Bytes in files; a file counts in equal parts.", size_text, sum),
    Measure("cells", "Cells", _CELLS_MEANING, count_text, sum),
    Measure("files", "Files", "Files that are read for a key group.", count_text, max),
)
"""The numbers that the map can show."""


@attrs.frozen(kw_only=True)
class Equal:
    """Neighbouring key groups of one subtask that have the same numbers."""

    groups: KeyGroupRange
    subtask: int
    numbers: Mapping[str, float | None]
    """Measure → number of each of them."""


@attrs.frozen(kw_only=True)
class MapRow:
    """One row of the map."""

    label: str
    cells: Sequence[Cell]


def key_groups(operator: OperatorView, by: str) -> Mapping[str, Any]:
    """Return the values for the template; ``by`` is the name of a measure."""
    version = operator.timeline.newest
    manifests = operator.manifests(version) if version else ()
    if version is None or not manifests:
        return {"version": version, "groups": None}
    groups = key_groups_of(manifests)
    numbers = {measure.name: _numbers(groups, measure.name) for measure in MEASURES}
    known = [measure for measure in MEASURES if numbers[measure.name] is not None]
    measure = next((one for one in known if one.name == by), known[0])
    chosen = numbers[measure.name]
    assert chosen is not None
    rows, each = _rows(chosen, measure, manifests)
    equal = [*_equal({measure.name: chosen}, manifests)]
    return {
        "version": version,
        "groups": groups,
        "count": len(chosen),
        "measures": known,
        "unknown": [one for one in MEASURES if one not in known],
        "measure": measure,
        "labels": [row.label for row in rows],
        "map": _map(rows),
        "each": each,
        "table": [(one, one.numbers[measure.name]) for one in equal] if len(equal) <= _ROWS else (),
        "largest": max(chosen),
        "skew": max(chosen) * len(chosen) / sum(chosen) if sum(chosen) else 1.0,
        "hottest": _hottest(chosen, numbers, manifests),
    }


def key_groups_csv(operator: OperatorView) -> str:
    """Return all numbers of each key group."""
    version = operator.timeline.newest
    manifests = operator.manifests(version) if version else ()
    groups = key_groups_of(manifests) if manifests else None
    columns = [None if groups is None else _numbers(groups, one.name) for one in MEASURES]
    rows = (
        [group, made.subtask, *(None if column is None else column[group] for column in columns)]
        for made in _in_order(manifests)
        for group in made.range
    )
    return csv_text(["key_group", "subtask", *(measure.name for measure in MEASURES)], rows)


def _numbers(groups: KeyGroups, name: str) -> Sequence[float] | None:
    numbers: Sequence[float] | None = getattr(groups, name)
    return numbers


def _rows(
    numbers: Sequence[float], measure: Measure, manifests: Sequence[Manifest]
) -> tuple[Sequence[MapRow], int]:
    """Return a row for each subtask, or several if its range is long; and groups of a cell."""
    each = -(-len(numbers) // _SQUARES)
    rows = []
    for made in _in_order(manifests):
        cells = _cells(numbers, made.range, measure, each)
        lines = -(-len(cells) // _WIDEST)
        width = -(-len(cells) // lines)
        for line in range(lines):
            label = f"subtask {made.subtask}" if line == 0 else ""
            rows.append(MapRow(label=label, cells=cells[line * width : (line + 1) * width]))
    return rows, each


def _cells(
    numbers: Sequence[float], groups: KeyGroupRange, measure: Measure, each: int
) -> Sequence[Cell]:
    cells = []
    for start in range(groups.start, groups.end + 1, each):
        end = min(start + each - 1, groups.end)
        value = measure.together(numbers[start : end + 1])
        name = f"key group {start}" if start == end else f"key groups {start} to {end}"
        cells.append(Cell(value, f"{name}: {measure.shown(value)}"))
    return cells


def _map(rows: Sequence[MapRow]) -> Markup:
    return grid([row.cells for row in rows], max(len(row.cells) for row in rows))


def _hottest(
    chosen: Sequence[float],
    numbers: Mapping[str, Sequence[float] | None],
    manifests: Sequence[Manifest],
) -> Sequence[Mapping[str, Any]]:
    total = sum(chosen)
    equal = [*_equal(numbers, manifests)]
    equal.sort(key=lambda one: chosen[one.groups.start], reverse=True)
    return [
        {
            "groups": one.groups,
            "subtask": one.subtask,
            "share": chosen[one.groups.start] / total,
            **one.numbers,
        }
        for one in equal[:_HOTTEST]
        if chosen[one.groups.start]
    ]


def _equal(
    numbers: Mapping[str, Sequence[float] | None], manifests: Sequence[Manifest]
) -> Iterator[Equal]:
    """Yield all key groups, neighbours of one subtask with the same numbers together."""

    def of(group: int) -> dict[str, float | None]:
        return {name: None if all_ is None else all_[group] for name, all_ in numbers.items()}

    for made in _in_order(manifests):
        for same, found in groupby(made.range, of):
            groups = [*found]
            together = KeyGroupRange(groups[0], groups[-1])
            yield Equal(groups=together, subtask=made.subtask, numbers=same)


def _in_order(manifests: Sequence[Manifest]) -> Sequence[Coordinates]:
    return sorted((m.made for m in manifests), key=lambda made: made.range.start)
