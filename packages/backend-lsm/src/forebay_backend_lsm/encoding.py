"""Encodes the changes of a micro-batch as sorted cells, and packs and unpacks list values."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Final

import attrs
import numpy as np

from forebay_backend_lsm.addressing import Addressing, CellKeys, ClearKeys, PlainKeys
from forebay_backend_lsm.files import Cell, CellKind, Cells, FewCells
from forebay_backend_lsm.files.arrow import binary_array
from forebay_backend_lsm.files.few_cells import MOST
from forebay_state_api.contract.backend import TableSpec
from forebay_state_api.contract.changes import ABSENT, Changes, ListChange, MapChange, PointChanges

_COUNT: Final = struct.Struct("<I")


@attrs.frozen
class _Encoded:
    """Cells of one namespace, packed and not yet addressed."""

    keys: CellKeys
    kinds: bytes
    times: list[int] | None
    """``None`` in a table without a time column."""
    values: list[bytes]

    @property
    def columns(self) -> Cells:
        addressed = self.keys.addressed()
        return Cells(
            addressed.addresses,
            np.frombuffer(self.kinds, np.uint8),
            None if self.times is None else np.array(self.times, np.int64),
            binary_array(addressed.keys),
            binary_array(self.values),
        )

    @property
    def cells(self) -> Iterator[Cell]:
        times = repeat(None) if self.times is None else self.times
        for (address, key), kind, time, value in zip(
            self.keys.one_by_one(), self.kinds, times, self.values, strict=False
        ):
            yield Cell(address, key, kind, time, value)


def cells_of(spec: TableSpec, addressing: Addressing, changes: Changes) -> Cells | FewCells | None:
    """Encode ``changes`` as sorted cells; return ``None`` for changes without effect."""
    parts: list[_Encoded] = []
    for namespace, points in changes.points.items():
        parts.append(_points(spec, addressing, namespace, points))
    for namespace, lists in changes.lists.items():
        parts += _lists(spec, addressing, namespace, lists)
    for namespace, maps in changes.maps.items():
        parts += _maps(spec, addressing, namespace, maps)
    if not parts:
        return None
    if sum([len(part.kinds) for part in parts]) <= MOST:
        has_times = parts[0].times is not None
        return FewCells.sorted([one for part in parts for one in part.cells], has_times=has_times)
    return Cells.concat([part.columns for part in parts]).sorted()


def _points(
    spec: TableSpec, addressing: Addressing, namespace: Any, points: PointChanges
) -> _Encoded:
    prefixes = addressing.prefixes(namespace, points.keys)
    return _puts(spec, PlainKeys(points.groups, prefixes), points.values)


def _puts(spec: TableSpec, keys: CellKeys, values: Sequence[Any]) -> _Encoded:
    """Return a put for each stored value, a delete for each ``ABSENT``."""
    gone = [i for i, value in enumerate(values) if value is ABSENT]
    present = [value for value in values if value is not ABSENT] if gone else values
    times: list[int] | None = None
    if spec.ttl:
        times = [0 if value is ABSENT else value[0] for value in values]
        present = [value[1] for value in present]
    kinds = bytearray(len(values))
    packed = spec.value.pack_each([*present])
    if gone:
        for i in gone:
            kinds[i] = CellKind.DELETE
        put = iter(packed)
        packed = [b"" if value is ABSENT else next(put) for value in values]
    return _Encoded(keys, bytes(kinds), times, packed)


def _lists(
    spec: TableSpec, addressing: Addressing, namespace: Any, lists: Mapping[Any, ListChange]
) -> Iterator[_Encoded]:
    changed = {key: one for key, one in lists.items() if one.replaced or one.elements}
    if not changed:
        return
    groups = [one.group for one in changed.values()]
    kinds = [
        CellKind.APPEND if not one.replaced else CellKind.PUT if one.elements else CellKind.DELETE
        for one in changed.values()
    ]
    values = [
        pack_elements(spec, one.elements) if one.elements else b"" for one in changed.values()
    ]
    prefixes = addressing.prefixes(namespace, [*changed])
    yield _Encoded(PlainKeys(groups, prefixes), bytes(kinds), None, values)


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
) -> Iterator[_Encoded]:
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
        yield _puts(spec, addressing.entries_below(groups, owners, entries), values)


def _clears(
    spec: TableSpec, prefixes: Sequence[bytes], maps: Iterable[MapChange]
) -> Iterator[_Encoded]:
    cleared = [(p, one.group) for p, one in zip(prefixes, maps, strict=True) if one.cleared]
    if cleared:
        count = len(cleared)
        keys = ClearKeys([group for _, group in cleared], [prefix for prefix, _ in cleared])
        times = [0] * count if spec.ttl else None
        yield _Encoded(keys, bytes([CellKind.CLEAR] * count), times, [b""] * count)
