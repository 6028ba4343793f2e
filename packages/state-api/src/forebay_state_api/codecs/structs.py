"""The shape of Spark's structs: NamedTuples made from the fields' names."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from forebay_state_api.codecs._makers import TupleMaker
from forebay_state_api.codecs._shape import MisfitError, UnsupportedTypeError, a_class
from forebay_state_api.codecs.records import Field, RecordShape


class StructShape(RecordShape):
    """A struct: comes out as a NamedTuple, goes in as that, as a tuple, a Row or a dict.

    A plain tuple is taken by position; whatever has field names, by name, in any order, and it
    must have exactly the declared ones.
    """

    def __init__(self, fields: Sequence[Field]) -> None:
        """Describe structs of ``fields``. Raises `UnsupportedTypeError` for repeated names."""
        self._names = tuple(field.name for field in fields)
        if len(set(self._names)) != len(self._names):
            msg = f"a struct has two fields of one name: {', '.join(self._names)}"
            raise UnsupportedTypeError(msg)
        cls = struct_class(self._names)
        super().__init__(cls, fields, kind="struct", maker=TupleMaker(cls), frozen=True)

    def _taken_apart(self, value: Any) -> Sequence[Any]:
        if isinstance(value, self._cls):
            return tuple(value)
        if isinstance(value, dict):
            return self._by_name(value)
        if not isinstance(value, tuple):
            raise MisfitError("", f"{a_class(value)}, not a tuple or a dict")
        names = getattr(value, "_fields", None) or getattr(value, "__fields__", None)
        if names is not None:
            return self._by_name(dict(zip(names, value, strict=True)))
        if len(value) != len(self._names):
            raise MisfitError("", f"a tuple of length {len(value)}, not {len(self._names)}")
        return value

    def _by_name(self, given: dict[Any, Any]) -> Sequence[Any]:
        missing = [name for name in self._names if name not in given]
        if missing:
            raise MisfitError("", f"without {', '.join(missing)}")
        if len(given) > len(self._names):
            unknown = [str(name) for name in given if name not in self._names]
            raise MisfitError("", f"with {', '.join(unknown)}, which the struct does not have")
        return [given[name] for name in self._names]


@lru_cache(maxsize=256)
def struct_class(names: tuple[str, ...]) -> type[Any]:
    """Return the NamedTuple class for fields of these names, the same each time.

    Names that are no identifiers are replaced by ``_0``, ``_1``, … after their position.
    """
    return namedtuple("Struct", names, rename=True)  # noqa: PYI024 - the fields' types are in the shape
