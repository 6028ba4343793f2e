"""Yields the cells of a point state from its sections, without making a table of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from forebay_backend_heap.encoding import decode_chunks
from forebay_backend_heap.files import Operation, Section
from forebay_state_api.codecs import decoding
from forebay_state_api.contract.backend import TableSpec
from forebay_state_api.contract.changes import Changes, PointChanges
from forebay_state_api.contract.migration import reader_of

Hidden = dict[Any, set[Any]]
"""Namespace → the keys that newer sections have put or deleted."""


def exported_points(sections: Sequence[Section], spec: TableSpec, page: int) -> Iterator[Changes]:
    """Yield the newest content of each key, at most ``page`` of them in each item.

    ``sections`` are oldest first. Holds one chunk, and the keys of sections that have older ones.
    """
    hidden: Hidden = {}
    for position in reversed(range(len(sections))):
        section = sections[position]
        older = any(one.range.intersection(section.range) for one in sections[:position])
        newer: Hidden = {}
        for namespace, points in _newest(section, spec, hidden, newer if older else None):
            for start in range(0, len(points.keys), page):
                yield Changes(points={namespace: _part(points, start, start + page)})
        for namespace, keys in newer.items():
            hidden.setdefault(namespace, set()).update(keys)


def _newest(
    section: Section, spec: TableSpec, hidden: Hidden, newer: Hidden | None
) -> Iterator[tuple[Any, PointChanges]]:
    """Yield a section's cells that are not hidden; collect all its keys in ``newer``."""
    with decoding(lambda _: section.where):
        reader = reader_of(section.description, spec)
    for block in decode_chunks(section, reader):
        for namespace, keys, groups, values in block.by_namespace():
            if newer is not None:
                newer.setdefault(namespace, set()).update(keys)
            if section.op is Operation.PUT and values is not None:
                yield (
                    namespace,
                    _without(PointChanges(keys, groups.tolist(), values), hidden.get(namespace)),
                )


def _without(points: PointChanges, hidden: set[Any] | None) -> PointChanges:
    if not hidden or hidden.isdisjoint(points.keys):
        return points
    kept = [at for at, key in enumerate(points.keys) if key not in hidden]
    return PointChanges(*([column[at] for at in kept] for column in _columns(points)))


def _part(points: PointChanges, start: int, stop: int) -> PointChanges:
    if not start and stop >= len(points.keys):
        return points
    return PointChanges(*(column[start:stop] for column in _columns(points)))


def _columns(points: PointChanges) -> tuple[list[Any], list[int], list[Any]]:
    return points.keys, points.groups, points.values
