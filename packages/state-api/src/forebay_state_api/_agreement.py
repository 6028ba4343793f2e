"""Whether two descriptors of one name declare one state, and in what they differ."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from forebay_state_api.codecs import Codec

if TYPE_CHECKING:
    from forebay_state_api.descriptors import StateDescriptor

_Met = dict[tuple[int, int], tuple[object, object]]
"""Pairs that are being compared, by their ids; kept, so that no id is used again."""

_BY_IDENTITY: Final[object] = object.__eq__

_TYPES: Final = frozenset({"type", "key type"})
"""The aspects that are types, which may be written in several ways."""

_ATTRIBUTES: Final[Mapping[type, Sequence[str]]] = {
    types.FunctionType: ("__code__", "__defaults__", "__kwdefaults__", "__closure__"),
    types.MethodType: ("__func__", "__self__"),
    # Functions as well: they are bound to their module.
    types.BuiltinMethodType: ("__name__", "__self__"),
    types.CellType: ("cell_contents",),
}
"""What functions of a class are told apart by."""

_SHOWN: Final = 400


def disagreement(known: StateDescriptor, other: StateDescriptor) -> str | None:
    """In what two descriptors differ, for a message; ``None`` if they declare one state."""
    if known.kind != other.kind:
        return f"kind ({known.kind} and {other.kind})"
    ours, theirs = known.aspects(), other.aspects()
    told = [
        _told(name, ours[name], theirs[name])
        for name in ours
        if not (_same_type if name in _TYPES else same)(ours[name], theirs[name])
    ]
    return " and ".join(told) or None


def same(one: object, other: object) -> bool:
    """Whether two objects are the same, or were made in the same way, as far as can be told.

    What is equal is the same. Functions are compared by their code, their defaults and what they
    have captured, instances by their class and by what pickling takes of them. Two objects of one
    class that nothing tells apart, or whose comparison raises, count as the same.
    """
    return _same(one, other, {})


def _same_type(one: object, other: object) -> bool:
    return _equal(one, other) or (isinstance(one, Codec) and same(one, other))


def _same(one: object, other: object, met: _Met) -> bool:
    pair = (id(one), id(other))
    if one is other or pair in met:
        return True
    if type(one) is not type(other) or isinstance(one, type | types.ModuleType):
        return False
    met[pair] = one, other
    if type(one).__eq__ is not _BY_IDENTITY and _true(one, other):
        return True
    ours, theirs = _parts(one), _parts(other)
    if ours or theirs:
        return len(ours) == len(theirs) and all(
            _same(mine, its, met) for mine, its in zip(ours, theirs, strict=True)
        )
    return _alike(one, other)


def _parts(value: Any) -> Sequence[object]:
    """What tells ``value`` from others of its class; empty where only ``==`` can."""
    if isinstance(value, tuple | list):
        return value
    if isinstance(value, dict):
        return *value, *value.values()
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    attributes = _ATTRIBUTES.get(type(value))
    if attributes is None:
        return _state(value)
    try:
        return [getattr(value, name) for name in attributes]
    except ValueError:  # a cell that nothing was assigned to yet
        return ()


def _state(value: Any) -> Sequence[object]:
    try:
        state = value.__getstate__()
    except Exception:  # noqa: BLE001 - any code of the user's may stand there
        return ()
    return () if state is None else (state,)


def _alike(one: Any, other: Any) -> bool:
    """Whether nothing tells two objects without parts apart; some, like NumPy's, have names."""
    if type(one).__eq__ is _BY_IDENTITY:
        return _equal(getattr(one, "__name__", None), getattr(other, "__name__", None))
    return _equal(one, other)


def _true(one: object, other: object) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001 - any code of the user's may stand there
        return False


def _equal(one: object, other: object) -> bool:
    try:
        return bool(one == other) or bool(one != one and other != other)  # noqa: PLR0124 - NaN
    except Exception:  # noqa: BLE001 - any code of the user's may stand there
        return True


def _told(name: str, one: object, other: object) -> str:
    first, second = _shown(one), _shown(other)
    if first == second:
        return f"{name} (twice {first}, with other fields, defaults or captured values)"
    return f"{name} ({first} and {second})"


def _shown(value: object) -> str:
    if isinstance(value, types.FunctionType):
        code = value.__code__
        return f"{value.__qualname__} of {code.co_filename}:{code.co_firstlineno}"
    if isinstance(value, type):
        return value.__qualname__
    has_text = type(value).__repr__ is not object.__repr__
    return f"{value!r:.{_SHOWN}}" if has_text else f"a {type(value).__qualname__}"
