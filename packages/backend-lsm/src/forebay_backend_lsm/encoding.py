"""Encodes the changes of a micro-batch as sorted cells, and packs and unpacks list values."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from forebay_backend_lsm.addressing import AddressedKeys, Addressing, Entries
from forebay_backend_lsm.files import Cells, Kind
from forebay_backend_lsm.files.arrow import binary_array
from forebay_state_api.contract.backend import TableSpec
from forebay_state_api.contract.changes import ABSENT, Changes, ListChange, MapChange, PointChanges

_COUNT: Final = struct.Struct("<I")


def cells_of(spec: TableSpec, addressing: Addressing, changes: Changes) -> Cells | None:
    """Encode ``changes`` as sorted cells; return ``None`` for changes without effect."""
    parts: list[Cells] = []
    for namespace, points in changes.points.items():
        parts += _points(spec, addressing, namespace, points)
    for namespace, lists in changes.lists.items():
        parts += _lists(spec, addressing, namespace, lists)
    for namespace, maps in changes.maps.items():
        parts += _maps(spec, addressing, namespace, maps)
    return Cells.concat(parts).sorted() if parts else None


def _points(
    spec: TableSpec, addressing: Addressing, namespace: Any, points: PointChanges
) -> Iterator[Cells]:
    batch = addressing.cells(namespace, np.array(points.groups), points.keys)
    yield _put_cells(spec, batch, points.values)


def _put_cells(spec: TableSpec, batch: AddressedKeys, values: Sequence[Any]) -> Cells:
    """Return a put for each stored value, a delete for each ``ABSENT``."""
    gone = [i for i, value in enumerate(values) if value is ABSENT]
    kinds = np.zeros(len(batch), np.uint8)
    kinds[gone] = Kind.DELETE
    present = [value for value in values if value is not ABSENT] if gone else values
    times = None
    if spec.ttl:
        times = np.zeros(len(batch), np.int64)
        stamps = np.fromiter([value[0] for value in present], np.int64, len(present))
        times[kinds == Kind.PUT] = stamps
        present = [value[1] for value in present]
    packed = spec.value.pack_each([*present])
    if gone:
        put = iter(packed)
        packed = [b"" if value is ABSENT else next(put) for value in values]
    return Cells(batch.addresses, kinds, times, binary_array(batch.keys), binary_array(packed))


def _lists(
    spec: TableSpec, addressing: Addressing, namespace: Any, lists: Mapping[Any, ListChange]
) -> Iterator[Cells]:
    changed = {key: one for key, one in lists.items() if one.replaced or one.elements}
    if not changed:
        return
    groups = np.array([one.group for one in changed.values()])
    batch = addressing.cells(namespace, groups, [*changed])
    kinds = [
        Kind.APPEND if not one.replaced else Kind.PUT if one.elements else Kind.DELETE
        for one in changed.values()
    ]
    values = [
        pack_elements(spec, one.elements) if one.elements else b"" for one in changed.values()
    ]
    yield Cells(
        batch.addresses,
        np.array(kinds, np.uint8),
        None,
        binary_array(batch.keys),
        binary_array(values),
    )


def pack_elements(spec: TableSpec, elements: Sequence[Any]) -> bytes:
    """Pack elements into one chunk of a list's value; return no bytes if there are no elements."""
    if not elements:
        return b""
    stamps = b""
    if spec.ttl:
        stamps = np.fromiter([one[0] for one in elements], "<i8", len(elements)).tobytes()
        elements = [one[1] for one in elements]
    packed = spec.value.pack_each([*elements])
    lengths = np.fromiter(map(len, packed), "<u4", len(packed)).tobytes()
    return b"".join((_COUNT.pack(len(packed)), stamps, lengths, *packed))


def unpack_elements(spec: TableSpec, value: bytes, page_size: int) -> Iterator[list[Any]]:
    """Yield the elements of a list's value, at most ``page_size`` at a time."""
    stamps: list[int] = []
    parts: list[bytes] = []
    lengths: list[int] = []
    for times, sizes, data in _chunks(value, ttl=spec.ttl):
        at = 0
        for start in range(0, len(sizes), page_size):
            page = sizes[start : start + page_size]
            end = at + sum(page)
            if len(lengths) + len(page) > page_size:
                yield _elements(spec, stamps, parts, lengths)
                stamps, parts, lengths = [], [], []
            stamps += times[start : start + page_size]
            parts.append(data[at:end])
            lengths += page
            at = end
    if lengths:
        yield _elements(spec, stamps, parts, lengths)


def _elements(
    spec: TableSpec, stamps: list[int], parts: list[bytes], lengths: list[int]
) -> list[Any]:
    elements = spec.value.unpack_each(b"".join(parts), lengths)
    return [*zip(stamps, elements, strict=True)] if spec.ttl else elements


def _chunks(value: bytes, *, ttl: bool) -> Iterator[tuple[list[int], list[int], bytes]]:
    """Yield times, lengths and joined elements of each chunk."""
    at = 0
    while at < len(value):
        (count,) = _COUNT.unpack_from(value, at)
        at += _COUNT.size
        times: list[int] = []
        if ttl:
            times = np.frombuffer(value, "<i8", count, at).tolist()
            at += 8 * count
        lengths: list[int] = np.frombuffer(value, "<u4", count, at).tolist()
        at += 4 * count
        end = at + sum(lengths)
        yield times, lengths, value[at:end]
        at = end


def _maps(
    spec: TableSpec, addressing: Addressing, namespace: Any, maps: Mapping[Any, MapChange]
) -> Iterator[Cells]:
    prefixes = addressing.prefixes(namespace, [*maps])
    yield from _clears(spec, prefixes, maps.values())
    groups: list[int] = []
    owners: list[bytes] = []
    entries: list[Any] = []
    values: list[Any] = []
    for prefix, one in zip(prefixes, maps.values(), strict=True):
        # Entries that a clear removes need no deletes.
        kept = [e for e in one.entries.items() if not (one.cleared and e[1] is ABSENT)]
        groups += [one.group] * len(kept)
        owners += [prefix] * len(kept)
        entries += [entry for entry, _ in kept]
        values += [value for _, value in kept]
    if entries:
        batch = addressing.entries_below(np.array(groups), owners, entries).cells
        yield _put_cells(spec, batch, values)


def _clears(
    spec: TableSpec, prefixes: Sequence[bytes], maps: Iterable[MapChange]
) -> Iterator[Cells]:
    cleared = [(p, one.group) for p, one in zip(prefixes, maps, strict=True) if one.cleared]
    if cleared:
        keys = [prefix for prefix, _ in cleared]
        batch = Entries.of(np.array([group for _, group in cleared]), keys, [b""] * len(keys))
        times = np.zeros(len(keys), np.int64) if spec.ttl else None
        nothing = binary_array([b""] * len(keys))
        kinds = np.full(len(keys), Kind.CLEAR, np.uint8)
        yield Cells(batch.prefixes.addresses, kinds, times, binary_array(keys), nothing)
