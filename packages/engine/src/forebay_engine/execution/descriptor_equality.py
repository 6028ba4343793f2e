"""Compare two descriptors of one name: whether they declare the same state, and how they differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay_state_api.codecs import Codec

if TYPE_CHECKING:
    from forebay_state_api.job.descriptors import StateDescriptor


def disagreement(known: StateDescriptor, other: StateDescriptor) -> str | None:
    """Return how two descriptors differ, for a message; ``None`` if they declare the same state.

    Types, times to live and defaults are compared by ``==``, codecs by their class, functions by
    their code, and instances of function classes by their class, not by their fields.
    """
    if known.kind != other.kind:
        return f"kind ({known.kind} and {other.kind})"
    ours, theirs = known.aspects(), other.aspects()
    pairs = {name: (ours.get(name), theirs.get(name)) for name in ours | theirs}
    differences = [
        f"{name} ({_shown(one)} and {_shown(other)})"
        for name, (one, other) in pairs.items()
        if not _same(name, one, other)
    ]
    return " and ".join(differences) or None


def _same(name: str, one: Any, other: Any) -> bool:
    if one is other:
        return True
    if name.endswith("_function"):
        return bool(_code(one) == _code(other))
    if isinstance(one, Codec):
        return type(one) is type(other)
    if name == "default" and type(one) is not type(other):  # 0 and False are equal
        return False
    return bool(one == other or (one != one and other != other))  # noqa: PLR0124 - NaN


def _code(function: Any) -> Any:
    """Return a function's code, a C function's name, or else the object's class."""
    return getattr(function, "__code__", None) or getattr(function, "__name__", type(function))


def _shown(value: Any) -> str:
    if code := getattr(value, "__code__", None):
        return f"{value.__qualname__} of {code.co_filename}:{code.co_firstlineno}"
    if isinstance(value, type):
        return value.__qualname__
    text = f"{value!r:.400}"
    return f"a {type(value).__qualname__}" if " at 0x" in text else text
