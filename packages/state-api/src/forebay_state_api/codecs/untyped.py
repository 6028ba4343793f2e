"""The shape of a self-describing value: any plain value, nested up to 100 levels deep."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

import msgpack

from forebay_state_api.codecs.describe import describe_type
from forebay_state_api.codecs.numpy_scalars import without_numpy
from forebay_state_api.codecs.plain import (
    EXT_ANY,
    SCALARS,
    SELF_DESCRIBING,
    dump_any,
    load_any,
)
from forebay_state_api.codecs.scalars import ADDRESSES, in_utc
from forebay_state_api.codecs.type_shapes import (
    Code,
    Description,
    Function,
    MisfitError,
    TypeShape,
    UnreadableError,
    a_class,
)

_DEEPEST: Final = 100
_PLAIN: Final = "None, bool, int, float, str, bytes, datetime, date, time, timedelta, Decimal, UUID"
_WAY_OUT: Final = "for another class, declare it as the state's type, or a Codec for it"
_AS_THEY_ARE: Final = SCALARS - ADDRESSES.keys()
_EXACT: Final = SCALARS - {datetime}
"""Scalars that are stored unchanged."""


class AnyShape(TypeShape):
    """A value of any plain kind, nested freely; nothing is declared about it."""

    layout = SELF_DESCRIBING

    def __init__(self) -> None:
        """Describe a value of no declared type."""
        self.description = {"type": "any"}
        self.copy = _copy
        self.to_plain = _enclose
        self.address = _address
        self.original = _original

    def test(self, subject: str, code: Code) -> str:
        """Pass scalars and tuples of them; all other values have to be copied anyway.

        Datetimes do not pass, since they may have to be converted to UTC.
        """
        known = code.bind(_EXACT)
        flat = f"type({subject}) is tuple and {known}.issuperset(map(type, {subject}))"
        return f"(type({subject}) in {known} or {flat})"

    def taken(self, subject: str, code: Code) -> str:  # noqa: ARG002 - nothing to copy
        """Store a value that passed the test as it is: it is immutable."""
        return subject

    def convert(self, value: Any) -> Any:
        """Copy lists and dicts, check everything."""
        return _admit(value, 0)

    def reader(self, stored: Description) -> Function | None:
        """Accept only data that were written without a declared type."""
        if stored["type"] != "any":
            raise UnreadableError(f"{describe_type(stored)} is stored, and no type is declared")
        return None


def _admit(value: Any, depth: int) -> Any:
    if type(value) in _EXACT:
        return value
    if type(value) is datetime:
        return in_utc(value)
    plain = without_numpy(value)
    if plain is not value:
        return plain
    if depth > _DEEPEST:
        raise MisfitError("", f"nested deeper than {_DEEPEST} levels")
    if type(value) is dict:
        return {_admit(key, depth + 1): _part(f"[{key!r}]", v, depth) for key, v in value.items()}
    if type(value) is not list and type(value) is not tuple:
        problem = f"{a_class(value)}, not {_PLAIN}, list, tuple or dict; {_WAY_OUT}"
        raise MisfitError("", problem)
    parts = [_part(f"[{i}]", part, depth) for i, part in enumerate(value)]
    return parts if type(value) is list else tuple(parts)


def _part(step: str, value: Any, depth: int) -> Any:
    if type(value) in _EXACT:
        return value
    try:
        return _admit(value, depth + 1)
    except MisfitError as fault:
        raise fault.below(step) from None


def _copy(value: Any) -> Any:
    if type(value) in SCALARS:
        return value
    if type(value) is list:
        return [_copy(part) for part in value]
    if type(value) is dict:
        return {key: _copy(part) for key, part in value.items()}
    return value if SCALARS.issuperset(map(type, value)) else tuple([_copy(part) for part in value])


def _enclose(value: Any) -> Any:
    """Return the form that ``value`` has inside a value of a declared type."""
    return value if type(value) in SCALARS else msgpack.ExtType(EXT_ANY, dump_any(value))


def _address(value: Any) -> Any:
    return value if type(value) is str or type(value) is int else dump_any(_canonical(value))


def _original(address: Any) -> Any:
    return load_any(address) if type(address) is bytes else address


def _canonical(value: Any) -> Any:
    if type(value) in _AS_THEY_ARE:
        return value
    if type(value) is tuple:
        return tuple([_canonical(part) for part in value])
    canonical = ADDRESSES.get(type(value))
    if canonical is None:
        raise TypeError(f"{a_class(value)} cannot be a key, or a part of one")
    return canonical(value)
