"""Packs columns of flat values to the bytes that `ValueCodec.pack` writes, and back, by arrays."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import date
from itertools import chain
from typing import Any, Final

import msgpack
import numpy as np

from forebay_state_api.codecs.columns import (
    Array,
    Column,
    Texts,
    copy_spans,
    first_not_utf8,
    offsets_of,
    windows,
)
from forebay_state_api.codecs.plain import EXT_DATE

_NIL, _FALSE, _TRUE, _FLOAT, _DATE = 0xC0, 0xC2, 0xC3, 0xCB, 0xD6
_INTS: Final = (
    *((0, -1), (1, 0xCC), (2, 0xCD), (4, 0xCE), (8, 0xCF)),
    *((0, -1), (1, 0xD0), (2, 0xD1), (4, 0xD2), (8, 0xD3)),
)
"""(Bytes after the head, head) by class, positive and negative; -1: the value is the head."""
_TEXT: Final = ((0, 0xA0), (1, 0xD9), (2, 0xDA), (4, 0xDB))
_BYTES: Final = ((1, 0xC4), (2, 0xC5), (4, 0xC6))
_EPOCH: Final = date(1970, 1, 1).toordinal()
_LAYOUTS: Final = {
    _FLOAT: ">f8",
    _DATE: [("ext", "u1"), ("value", ">i4")],
    **dict(zip(range(0xCC, 0xD0), ("u1", ">u2", ">u4", ">u8"), strict=True)),
    **dict(zip(range(0xD0, 0xD4), ("i1", ">i2", ">i4", ">i8"), strict=True)),
}
"""Head → the layout of the bytes after it."""
_KINDS: Final = dict.fromkeys(range(0xCC, 0xD4), "int64") | {_FLOAT: "float64", _DATE: "date"}
"""Head of a value with bytes after it → the kind of its column."""
_ARRAYS: Final = {"bool": np.bool_, "int64": np.int64, "float64": np.float64, "date": np.int64}


def pack(columns: Sequence[Column], kinds: Sequence[str], *, tuples: bool) -> bytes:
    """Return the bytes of a list of scalars, or with ``tuples`` of tuples of all columns."""
    return array_head(len(columns[0])) + pack_each(columns, kinds, tuples=tuples).data.tobytes()


def pack_each(columns: Sequence[Column], kinds: Sequence[str], *, tuples: bool) -> Texts:
    """Return the bytes of each scalar or tuple, as `ValueCodec.pack_one` packs it."""
    count = len(columns[0])
    parts = [_Packed(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    heads = array_head(len(columns)) if tuples else b""
    fields = [field for part in parts if (field := part.field()) is not None]
    if len(fields) == len(parts):
        rows = _rows(count, heads, fields)
        size = rows.dtype.itemsize
        return Texts(np.arange(count + 1) * size, rows.view(np.uint8).reshape(-1), binary=True)
    offsets = offsets_of(_sizes(parts, count, heads))
    out = np.empty(int(offsets[-1]), np.uint8)
    for at, byte in enumerate(heads):
        out[offsets[:-1] + at] = byte
    position = offsets[:-1] + len(heads)
    for part in parts:
        part.write(out, position)
        position = position + part.sizes
    return Texts(offsets, out, binary=True)


def split(packed: bytes | memoryview, kinds: Sequence[str], *, tuples: bool) -> Texts | None:
    """Return the bytes of each value of a packed list; ``None`` as `unpack` does."""
    columns = unpack(packed, kinds, tuples=tuples)
    if columns is None:
        return None
    count = len(columns[0])
    parts = [_Packed(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    offsets = offsets_of(_sizes(parts, count, array_head(len(columns)) if tuples else b""))
    data = np.frombuffer(packed, np.uint8)[len(array_head(count)) :]
    if len(data) != int(offsets[-1]):
        raise ValueError(f"{len(data)} bytes of values instead of {offsets[-1]}")
    return Texts(offsets, data, binary=True)


def array_head(count: int) -> bytes:
    """Return the head of an array of ``count`` values."""
    if count < 16:  # noqa: PLR2004 - msgpack's own bounds
        return bytes([0x90 | count])
    if count < 1 << 16:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")


class _Packed:
    """The sizes of a column's packed values, and what writes them."""

    def __init__(self, column: Column, kind: str) -> None:
        values = column.values
        self._writes: list[tuple[Array | None, int, Array | int, Array | None]] = []
        """(Cells or all, bytes after the head, heads, bytes whose last ones follow the head)."""
        self._texts: tuple[Texts, Array, Array] | None = None
        self._missing = None if column.valid is None or column.valid.all() else ~column.valid
        count = len(values)
        self.sizes = np.ones(count, np.int64)
        if isinstance(values, Texts):
            self._plan_texts(values)
        elif kind == "bool":
            self._writes.append((None, 0, values.astype(np.uint8) + _FALSE, None))
        elif kind == "float64":
            self._add(np.zeros(count, np.int8), ((8, _FLOAT),), _big_endian(values, ">f8"))
        elif kind == "date":
            days = _big_endian(values + _EPOCH, ">i4")
            data = np.concatenate([np.full((count, 1), EXT_DATE, np.uint8), days], axis=1)
            self._add(np.zeros(count, np.int8), ((5, _DATE),), data)
        else:
            self._plan_ints(values)
        if self._missing is not None:
            self.sizes = np.where(self._missing, 1, self.sizes)

    def _plan_texts(self, texts: Texts) -> None:
        lengths = texts.lengths
        if self._missing is not None:
            lengths = np.where(self._missing, 0, lengths)
        classes = (lengths > 0xFF).astype(np.int8) + (lengths > 0xFFFF)  # noqa: PLR2004
        if not texts.binary:
            classes += lengths > 0x1F  # noqa: PLR2004 - msgpack's own bounds
        self._add(classes, _BYTES if texts.binary else _TEXT, _big_endian(lengths, ">u4"))
        self._texts = (texts, self.sizes.copy(), lengths)
        self.sizes = self.sizes + lengths

    def _plan_ints(self, values: Array) -> None:
        classes = np.zeros(len(values), np.int8)
        for bound in (0x7F, 0xFF, 0xFFFF, 0xFFFFFFFF):
            classes += values > bound
        if (values < 0).any():
            for bound in (-(1 << 5), -(1 << 7), -(1 << 15), -(1 << 31)):
                classes -= values < bound
            classes = np.where((values < 0) & (classes <= 0), 5 - classes, classes)
        self._add(classes, _INTS, _big_endian(values, ">i8"))

    def _add(self, classes: Array, heads: Sequence[tuple[int, int]], data: Array) -> None:
        """Plan the values of each class: its head, then the last bytes of ``data``."""
        present = np.flatnonzero(np.bincount(classes, minlength=len(heads))).tolist()
        for one in present:
            width, head = heads[one]
            where = None if len(present) == 1 else np.flatnonzero(classes == one)
            tail = data if where is None else data[where]
            written: Array | int = tail[:, -1] if head < 0 else head
            if heads is _TEXT and one == 0:
                written = tail[:, -1] | head
            self._writes.append((where, width, written, tail if width else None))
            if where is None:
                self.sizes += width
            else:
                self.sizes[where] += width

    def write(self, out: Array, position: Array) -> None:
        """Write the values, each from its position on."""
        if self._missing is not None:
            out[position[self._missing]] = _NIL
        for where, width, heads, tail in self._writes:
            rows, kept_heads, kept = where, heads, tail
            if self._missing is not None:
                keep = ~self._missing if where is None else ~self._missing[where]
                rows = np.flatnonzero(keep) if where is None else where[keep]
                kept_heads = heads if isinstance(heads, int) else heads[keep]
                kept = None if tail is None else tail[keep]
            at = position if rows is None else position[rows]
            out[at] = kept_heads
            if kept is not None and len(kept):
                windows(out, width)[at + 1] = _tails(kept, width)
        if self._texts is not None:
            texts, heads_of, lengths = self._texts
            copy_spans(texts.data, texts.offsets[:-1], out, position + heads_of, lengths)

    def field(self) -> tuple[Array | int, Array | None] | None:
        """Return heads and the bytes after them if all values have one width, else ``None``."""
        if self._texts is not None or self._missing is not None or len(self._writes) != 1:
            return None
        _, width, heads, tail = self._writes[0]
        return heads, None if tail is None else _tails(tail, width)


def _big_endian(values: Array, kind: str) -> Array:
    """Return the bytes of each value, a row each."""
    data = np.ascontiguousarray(values, kind)
    return data.view(np.uint8).reshape(len(values), data.dtype.itemsize)


def _tails(data: Array, width: int) -> Array:
    """Return the last bytes of each row, as one value."""
    return np.ascontiguousarray(data[:, data.shape[1] - width :]).view(f"V{width}")[:, 0]


def _sizes(parts: Sequence[_Packed], count: int, heads: bytes) -> Array:
    sizes = np.full(count, len(heads), np.int64)
    for part in parts:
        sizes += part.sizes
    return sizes


def _rows(count: int, heads: bytes, fields: Sequence[tuple[Array | int, Array | None]]) -> Array:
    """Lay out rows of one width."""
    parts: list[tuple[str, Any]] = [(f"V{len(heads)}", np.void(heads))] if heads else []
    for head, tail in fields:
        parts.append(("u1", head))
        if tail is not None:
            parts.append((tail.dtype.str, tail))
    out = np.empty(count, [(f"f{number}", kind) for number, (kind, _) in enumerate(parts)])
    for number, (_, values) in enumerate(parts):
        out[f"f{number}"] = values
    return out


def unpack(
    data: bytes | memoryview, kinds: Sequence[str], *, tuples: bool
) -> tuple[Column, ...] | None:
    """Return the columns of packed values; ``None`` for values that `ColumnTypes.unpack` names."""
    columns = _unpacked_uniform(data, kinds, tuples=tuples)
    return _unpacked_objects(data, kinds, tuples=tuples) if columns is None else columns


def _unpacked_uniform(
    data: bytes | memoryview, kinds: Sequence[str], *, tuples: bool
) -> tuple[Column, ...] | None:
    """Read cells that have the same heads and widths, without Python objects."""
    count, start = _count(data)
    if not count:
        return None
    head = array_head(len(kinds)) if tuples else b""
    fields: list[tuple[str, Any]] = [("head", f"V{len(head)}")] if head else []
    at = start + len(head)
    for number, kind in enumerate(kinds):
        first = data[at] if at < len(data) else _NIL
        fields.append((f"h{number}", "u1"))
        at += 1
        after: Any = _LAYOUTS[first] if _KINDS.get(first) == kind else None
        if kind == "str" and 0xA0 < first < 0xC0:  # noqa: PLR2004 - the heads of short texts
            after = f"V{first & 0x1F}"
        if after is not None:
            fields.append((f"v{number}", after))
            at += np.dtype(after).itemsize
    layout = np.dtype(fields)
    if len(data) - start != count * layout.itemsize:
        return None
    cells = np.frombuffer(data, layout, count, start)
    if head and not (cells["head"] == np.void(head)).all():
        return None
    columns = [_uniform_column(kind, cells, number) for number, kind in enumerate(kinds)]
    found = tuple(column for column in columns if column is not None)
    return found if len(found) == len(columns) else None


def _uniform_column(kind: str, cells: Array, number: int) -> Column | None:
    """Return the column of fields that all have the head of the first; ``None`` if they do not."""
    heads, values = cells[f"h{number}"], None
    if f"v{number}" in (cells.dtype.names or ()):
        values = cells[f"v{number}"]
        same = (heads == heads[0]).all()
        if kind == "str":
            return _equally_long(values) if same else None
        if kind == "date":
            same = same and (values["ext"] == EXT_DATE).all()
            values = values["value"].astype(np.int64) - _EPOCH
        elif values.dtype == np.dtype(">u8"):
            same = same and not (values >> 63).any()
    elif kind == "bool":
        same, values = ((heads & 0xFE) == _FALSE).all(), heads == _TRUE
    else:
        values = heads.view(np.int8)
        same = kind == "int64" and (values >= -32).all()  # noqa: PLR2004 - msgpack's own bound
    return Column(values.astype(_ARRAYS[kind])) if same else None


def _equally_long(parts: Array) -> Column | None:
    """Return the column of texts of one length; ``None`` if they are not UTF-8."""
    data = np.frombuffer(parts.tobytes(), np.uint8)
    texts = Texts(np.arange(len(parts) + 1) * parts.dtype.itemsize, data)
    return Column(texts) if first_not_utf8(texts) is None else None


def _unpacked_objects(
    data: bytes | memoryview, kinds: Sequence[str], *, tuples: bool
) -> tuple[Column, ...] | None:
    rows = msgpack.unpackb(
        data, use_list=False, strict_map_key=False, unicode_errors="surrogatepass"
    )
    if tuples and {*map(len, rows)} - {len(kinds)}:
        return None
    if tuples and rows and {*kinds} == {"int64"}:
        with suppress(OverflowError, TypeError, ValueError):  # None, or too large
            flat = np.fromiter(chain.from_iterable(rows), np.int64, len(rows) * len(kinds))
            return tuple(map(Column, flat.reshape(len(rows), len(kinds)).T.copy()))
    columns = (list(zip(*rows, strict=True)) or [()] * len(kinds)) if tuples else [rows]
    try:
        return tuple(_column(kind, part) for kind, part in zip(kinds, columns, strict=True))
    except (OverflowError, TypeError, ValueError):
        return None


def _column(kind: str, values: Sequence[Any]) -> Column:
    """Return a column of unpacked values. Raises an error for what an array cannot hold."""
    valid = None
    if None in values:
        valid = np.array([value is not None for value in values], np.bool_)
        filler = {"str": "", "bytes": b"", "date": _NO_DATE}.get(kind, 0)
        values = [filler if value is None else value for value in values]
    if kind == "str":
        return Column(_texts(values), valid)
    if kind == "bytes":
        return Column(Texts.of(values, binary=True), valid)
    if kind == "date":
        days = np.frombuffer(b"".join([value.data for value in values]), ">i4")
        return Column(days.astype(np.int64) - _EPOCH, valid)
    if any(isinstance(value, tuple) for value in values):
        raise OverflowError("an int beyond 64 bits")
    return Column(np.array(values, _ARRAYS[kind]), valid)


_NO_DATE: Final = msgpack.ExtType(EXT_DATE, _EPOCH.to_bytes(4, "big"))


def _texts(values: Sequence[str]) -> Texts:
    joined = "".join(values)
    if not joined.isascii():
        return Texts.of([value.encode() for value in values], binary=False)
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    return Texts(offsets_of(lengths), np.frombuffer(joined.encode(), np.uint8))


def _count(data: bytes | memoryview) -> tuple[int, int]:
    """Return the length of an array, and where its first value begins."""
    width = {0xDC: 2, 0xDD: 4}.get(data[0], 0)
    return int.from_bytes(data[1 : 1 + width], "big") if width else data[0] & 15, 1 + width
