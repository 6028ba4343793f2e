"""Names of columns and fields as Python spells them.

Python puts every identifier of its source into the normal form NFKC: ``row.µg``, with the micro
sign, asks for the attribute ``μg``, with the Greek letter, and so do keyword arguments and the
fields of classes. Columns of Spark keep the spelling that they have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from unicodedata import normalize


def as_python(name: str) -> str:
    """Return the attribute that ``row.name`` asks for; ``name`` if it is no identifier."""
    if name.isascii():
        return name
    normal = normalize("NFKC", name)
    return normal if normal.isidentifier() else name


def one_to_python(names: Sequence[str]) -> tuple[str, ...]:
    """Return the first differently spelled names that are one name to Python, if any."""
    spelled: dict[str, list[str]] = {}
    for name in names:
        spelled.setdefault(as_python(name), []).append(name)
    return next((tuple(same) for same in spelled.values() if len(set(same)) > 1), ())


def as_declared(given: str, names: Sequence[str]) -> str:
    """Return the one of ``names`` that Python code means by ``given``.

    ``given`` itself unless exactly one matches.
    """
    if given in names:
        return given
    same = [name for name in names if as_python(name) == as_python(given)]
    return same[0] if len(same) == 1 else given


def spelled_otherwise(given: str, names: Sequence[str]) -> str:
    """Return the end of an error about a name that looks like one of ``names``; else empty."""
    declared = as_declared(given, names)
    return "" if declared == given else f". One looks like it, spelled {declared!a}, not {given!a}"


def with_declared_names(given: Mapping[Any, Any], names: Sequence[str]) -> dict[Any, Any]:
    """Return ``given`` under the names that Python code means by its keys, if these differ."""
    declared = {
        as_declared(key, names) if isinstance(key, str) else key: value
        for key, value in given.items()
    }
    return declared if len(declared) == len(given) else dict(given)
