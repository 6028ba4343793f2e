"""The files of the newest version: the runs of a sorted-file backend, the chains of any other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_console.charts import Strip, strips
from forebay_console.pages.csv_text import csv_text
from forebay_state_api.contract.file_names import data_version
from forebay_state_processor.observing.key_groups import cells_of
from forebay_state_processor.observing.quantities import count_text, size_text

if TYPE_CHECKING:
    from forebay_console.watching import OperatorView
    from forebay_engine.versions.format.manifest import Manifest
    from forebay_state_api.contract.files import StateFile

_STRIPS: Final = 3_000
"""The most files that are drawn."""
_ROWS: Final = 200
"""The most rows of a table."""


@attrs.frozen(kw_only=True)
class PlacedFile:
    """One file, as a subtask reads it."""

    subtask: int
    start: int
    end: int
    level: int
    """The number of files below it: 0 for the oldest."""
    bytes: int
    version: int | None
    """The version that it was made with; ``None`` if its name does not contain it."""
    cells: int | None


@attrs.frozen(kw_only=True)
class SubtaskFiles:
    """The files of one subtask."""

    subtask: int
    start: int
    end: int
    files: int
    depth: int
    """The most files of one key group: each of them may be asked for a key."""
    bytes: int
    cells: int | None
    """Cells in files, including overwritten ones; ``None`` if the backend does not count them."""
    deletes: int | None
    pending: int
    """Compactions that were submitted and have no result yet."""


def files(operator: OperatorView) -> Mapping[str, Any]:
    """Return the values for the template."""
    version = operator.timeline.newest
    manifests = operator.manifests(version) if version else ()
    if version is None or not manifests:
        return {"version": version, "subtasks": ()}
    ordered = sorted(manifests, key=lambda manifest: manifest.made.subtask)
    stacks = [_stacked(manifest.files) for manifest in ordered]
    found = [_subtask(*one) for one in zip(ordered, stacks, strict=True)]
    placed = [*_placed(ordered, stacks)]
    drawn = [_strip(one) for one in placed] if len(placed) <= _STRIPS else ()
    groups = ordered[0].made.max_parallelism
    return {
        "version": version,
        "backend": ordered[0].backend,
        "subtasks": found[:_ROWS],
        "more": max(0, len(found) - _ROWS),
        "groups": groups,
        "depth": max((one.depth for one in found), default=0),
        "total": sum(one.files for one in found),
        "bytes": sum(one.bytes for one in found),
        "drawing": strips(drawn, groups) if drawn else None,
        "placed": placed[:_ROWS],
    }


def files_csv(operator: OperatorView) -> str:
    """Return all files of the newest version."""
    version = operator.timeline.newest
    manifests = operator.manifests(version) if version else ()
    ordered = sorted(manifests, key=lambda manifest: manifest.made.subtask)
    stacks = [_stacked(manifest.files) for manifest in ordered]
    names = [field.name for field in attrs.fields(PlacedFile)]
    return csv_text(names, map(attrs.astuple, _placed(ordered, stacks)))


def _stacked(found: Sequence[StateFile]) -> Sequence[tuple[StateFile, int]]:
    """Return each file with the number of older ones below it; files are in order of age."""
    placed: list[tuple[StateFile, int]] = []
    for file in found:
        below = [level for older, level in placed if older.range.intersection(file.range)]
        placed.append((file, max(below, default=-1) + 1))
    return placed


def _placed(
    ordered: Sequence[Manifest], stacks: Sequence[Sequence[tuple[StateFile, int]]]
) -> Iterator[PlacedFile]:
    for manifest, stack in zip(ordered, stacks, strict=True):
        for file, level in stack:
            yield PlacedFile(
                subtask=manifest.made.subtask,
                start=file.range.start,
                end=file.range.end,
                level=level,
                bytes=file.size,
                version=data_version(file.name),
                cells=cells_of(file),
            )


def _strip(file: PlacedFile) -> Strip:
    parts = [
        f"key groups {file.start} to {file.end}",
        size_text(file.bytes),
        "" if file.version is None else f"made with version {file.version}",
        "" if file.cells is None else f"{count_text(file.cells)} cells",
    ]
    return Strip(
        start=file.start,
        end=file.end,
        level=file.level,
        value=float(file.bytes),
        tip=", ".join(filter(None, parts)),
    )


def _subtask(manifest: Manifest, stack: Sequence[tuple[StateFile, int]]) -> SubtaskFiles:
    made = manifest.made
    return SubtaskFiles(
        subtask=made.subtask,
        start=made.range.start,
        end=made.range.end,
        files=len(stack),
        depth=max((level for _, level in stack), default=-1) + 1,
        bytes=sum(file.size for file, _ in stack) + manifest.bytes_elsewhere,
        cells=_sum(cells_of(file) for file, _ in stack),
        deletes=_sum(file.meta.get("deletes") for file, _ in stack),
        pending=sum(name.endswith("/") for name in manifest.protected),
    )


def _sum(given: Iterable[int | None]) -> int | None:
    numbers = [*given]
    known = [number for number in numbers if number is not None]
    return sum(known) if known and len(known) == len(numbers) else None
