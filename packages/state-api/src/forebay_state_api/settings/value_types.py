"""The types of settings: plain types, sizes, durations, locations, choices."""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Callable
from typing import Any, Final

import attrs

_SIZE: Final = re.compile(r"(\d+)\s*([kmgt]?)i?b?")
_SIZES: Final = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|min|h|d|)")
_SECONDS: Final = {
    "us": 1e-6,
    "ms": 1e-3,
    "": 1.0,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}
_BOOLS: Final = {"true": True, "false": False}
LONGEST_S: Final = 36_500 * 86_400
"""The longest duration in seconds, a hundred years: clocks and waits can count further."""


@attrs.frozen
class SettingType:
    """A setting's type: the notation of its values, and their conversion."""

    expected: str
    """The expected form, for messages: ``a size such as 256m``."""
    accept: Callable[[Any], Any]
    """Text, or a value of the type → value; raises `ValueError` or `TypeError`."""
    show: Callable[[Any], str] = str
    """Value → text that `accept` accepts."""


def _integer(given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise TypeError(given)
    return int(given)


def _number(given: object) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        raise TypeError(given)
    number = float(given)
    if number != number or number in (float("inf"), float("-inf")):  # noqa: PLR0124 - NaN
        raise ValueError(given)
    return number


def _boolean(given: object) -> bool:
    if isinstance(given, bool):
        return given
    if not isinstance(given, str) or given.strip().lower() not in _BOOLS:
        raise ValueError(given)
    return _BOOLS[given.strip().lower()]


def _text(given: object) -> str:
    if not isinstance(given, str) or not given.strip():
        raise ValueError(given)
    return given.strip()


def _location(given: object) -> str:
    if isinstance(given, os.PathLike):
        given = os.fspath(given)
    return _text(given)


def _bytes(given: object) -> int:
    if not isinstance(given, str):
        return _integer(given)
    if (match := _SIZE.fullmatch(given.strip().lower())) is None:
        raise ValueError(given)
    return int(match[1]) * _SIZES[match[2]]


def _duration(given: object) -> float:
    if isinstance(given, datetime.timedelta):
        return _bounded(given.total_seconds())
    if not isinstance(given, str):
        return _bounded(_number(given))
    if (match := _DURATION.fullmatch(given.strip().lower())) is None:
        raise ValueError(given)
    return _bounded(float(match[1]) * _SECONDS[match[2]])


def _shown_bytes(size: int) -> str:
    for unit in ("t", "g", "m", "k"):
        if size and size % _SIZES[unit] == 0:
            return f"{size // _SIZES[unit]}{unit}"
    return str(size)


def _shown_duration(seconds: float) -> str:
    return f"{seconds:g}s"


def _shown_boolean(value: object) -> str:
    return str(value).lower()


def _bounded(seconds: float) -> float:
    if not 0 <= seconds <= LONGEST_S:
        raise ValueError(seconds)
    return seconds


BYTES: Final = SettingType(
    "a size such as 64k, 256m, 1g or a number of bytes", _bytes, _shown_bytes
)
"""An `int`, in bytes; units are powers of 1024."""
DURATION: Final = SettingType(
    "a duration such as 500ms, 30s, 5min, 1h or seconds, up to 36500d",
    _duration,
    _shown_duration,
)
"""A `float`, in seconds; a `datetime.timedelta` is accepted in code."""
LOCATION: Final = SettingType("a path or a URL", _location)
"""A `str`."""

_PLAIN: Final[dict[type, SettingType]] = {
    str: SettingType("a word", _text),
    int: SettingType("a whole number", _integer),
    float: SettingType("a number", _number),
    bool: SettingType("true or false", _boolean, _shown_boolean),
}


def one_of(*choices: str) -> SettingType:
    """Return the type of a setting whose value is one of ``choices``."""

    def accept(given: object) -> str:
        if (word := _text(given)) not in choices:
            raise ValueError(given)
        return word

    return SettingType(f"one of {', '.join(choices)}", accept)


def kind_of(declared: type | SettingType) -> SettingType:
    """Return the `SettingType` of `str`, `int`, `float` or `bool`; a `SettingType` as it is."""
    return declared if isinstance(declared, SettingType) else _PLAIN[declared]
