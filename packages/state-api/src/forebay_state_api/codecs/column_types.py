"""`ColumnTypes`: the columns of a declared type, one for each field of a tuple or a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

import attrs

from forebay_state_api.codecs.codec import ValueCodec
from forebay_state_api.codecs.column_bytes import pack, split, unpack
from forebay_state_api.codecs.columns import Column, Texts, objects
from forebay_state_api.codecs.plain import SELF_DESCRIBING

__all__ = ["ColumnTypes"]

OBJECT: Final = "object"
"""The kind of a column of Python values."""
_KINDS: Final[Mapping[str, str]] = {
    "bool": "bool",
    "int": "int64",
    "float": "float64",
    "str": "str",
    "bytes": "bytes",
    "date": "date",
}
"""The ``type`` of a scalar's description → the kind of its column."""


@attrs.frozen(eq=False)
class ColumnTypes:
    """The columns in which the values of a type are held, and their bytes.

    Scalars, and tuples and records of scalars that may be optional, have a column for each part.
    Values of every other type are one column of Python values.
    """

    codec: ValueCodec
    kinds: tuple[str, ...]
    names: tuple[str, ...]
    """The fields of a record; empty texts for scalars and tuples."""
    nullable: tuple[bool, ...]
    tuples: bool
    """Whether the values are tuples or records, also of one field."""

    @classmethod
    def of(cls, codec: ValueCodec) -> Self:
        """Return the columns for the values of ``codec``."""
        description = codec.description
        if description["type"] == "tuple":
            parts = [("", part) for part in description["elements"]]
        elif description["type"] == "record":
            parts = [(field["name"], field["type"]) for field in description["fields"]]
        else:
            parts = [("", description)]
        optional = [part["type"] == "optional" for _, part in parts]
        scalars = [part.get("of", part) for _, part in parts]
        kinds = [_KINDS.get(scalar["type"], OBJECT) for scalar in scalars]
        if not parts or OBJECT in kinds:
            return cls(codec, (OBJECT,), ("",), (False,), tuples=False)
        tuples = description["type"] in ("tuple", "record")
        names = tuple(name for name, _ in parts)
        return cls(codec, tuple(kinds), names, tuple(optional), tuples)

    @property
    def are_flat(self) -> bool:
        """Whether all columns are arrays of values, not of Python objects."""
        return OBJECT not in self.kinds

    @property
    def is_joinable(self) -> bool:
        """Whether a packed list is its values' own bytes, one after the other, after a header."""
        return self.codec._layout is not SELF_DESCRIBING  # noqa: SLF001 - codecs are one module to the outside

    def pack(self, columns: Sequence[Column]) -> bytes:
        """Return the bytes that ``codec.pack`` returns for the same values."""
        if self.are_flat:
            return pack(columns, self.kinds, tuples=self.tuples)
        return self.codec.pack(columns[0].values.tolist())  # type: ignore[union-attr]  # objects

    def unpack(self, data: bytes | memoryview) -> tuple[Column, ...] | None:
        """Return the columns of what `pack` or ``codec.pack`` has packed.

        Returns ``None`` for values that the arrays cannot hold: an int beyond 64 bits, a lone
        surrogate. The codec must read data of its own description.
        """
        if self.are_flat:
            return unpack(data, self.kinds, tuples=self.tuples)
        return (Column(objects(self.codec.unpack(data))),)

    def values(self, columns: Sequence[Column]) -> list[Any]:
        """Return the Python values of columns."""
        if self.are_flat:
            return self.codec.unpack(self.pack(columns))
        return list(columns[0].values.tolist())  # type: ignore[union-attr]  # objects

    def columns(self, values: list[Any]) -> tuple[Column, ...] | None:
        """Return the columns of Python values; ``None`` as `unpack` does."""
        return self.unpack(self.codec.pack(values)) if self.are_flat else (Column(objects(values)),)

    def split(self, packed: bytes | memoryview) -> Texts | None:
        """Return the bytes of each value of a packed list, as ``codec.pack_one`` returns them.

        Returns ``None`` where `unpack` does.
        """
        if self.are_flat and self.is_joinable:
            return split(packed, self.kinds, tuples=self.tuples)
        return Texts.of(self.codec.pack_each(self.codec.unpack(packed)), binary=True)
