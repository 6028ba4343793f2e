"""The clocks of a subtask that its manifest's name carries, because every subtask needs them all.

They come before the figures and look like them: a code and a number in base 36. Codes are ``XN``
for the time, ``XW`` for the watermark, and ``XA`` and ``XB`` for the latest event time of each
input that saw any in the micro-batch. A number is 0 for a time before all others; otherwise it is
one more than twice the µs since the epoch, or than twice the µs before it less one.

With ``idle_after`` one name of a version has more: ``XC`` and ``XD``, the mark of each input, as µs
after the watermark; ``XE`` and ``XF``, its silence, if there is any; and ``XG``, the time of the
micro-batch before, as µs before the time. Any name may have ``XH``: 1 if the micro-batch saw only
event times in the first input that were too far ahead, 2 in the second, 3 in both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from forebay_engine.versions.format.figures import FIGURE, base_36
from forebay_state_api.contract.backend import NO_TIME

_TIME: Final = "XN"
_WATERMARK: Final = "XW"
_SIDES: Final = ("XA", "XB")
_MARKS: Final = ("XC", "XD")
_SILENCES: Final = ("XE", "XF")
_BEFORE: Final = "XG"
_AHEAD: Final = "XH"
_CODES: Final = frozenset({_TIME, _WATERMARK, *_SIDES, *_MARKS, *_SILENCES, _BEFORE, _AHEAD})

MOST_CHARACTERS: Final = 116
"""The longest text, which fits into any name."""


def clocks_text(times: Mapping[str, Any]) -> str:
    """Return the clocks in `Manifest.times` as in a name, in `MOST_CHARACTERS` at most.

    Empty for a subtask without clocks, and for one with more than a name holds.
    """
    if "watermark_us" not in times or len(times["seen_us"]) > len(_SIDES):
        return ""
    text = "".join(_texts(times))
    return text if len(text) <= MOST_CHARACTERS else ""


def _texts(times: Mapping[str, Any]) -> Iterator[str]:
    now_us, watermark_us = times["now_us"], times["watermark_us"]
    yield f"{_TIME}{_packed(now_us)}{_WATERMARK}{_packed(watermark_us)}"
    for code, us, active in zip(_SIDES, times["seen_us"], times["active"], strict=False):
        if active:
            yield f"{code}{_packed(us)}"
    for code, us in zip(_MARKS, times.get("marks_us", ()), strict=False):
        yield f"{code}{_packed(_difference(us, watermark_us))}"
    for code, us in zip(_SILENCES, times.get("silent_us", ()), strict=False):
        if us:
            yield f"{code}{base_36(us)}"
    if (before_us := times.get("before_us", NO_TIME)) != NO_TIME:
        yield f"{_BEFORE}{_packed(_difference(now_us, before_us))}"
    if ahead := sum(1 << side for side, one in enumerate(times.get("only_ahead", ())) if one):
        yield f"{_AHEAD}{ahead}"


def clocks_of(encoded: str) -> Mapping[str, Any] | None:
    """Return the clocks in a name as in `Manifest.times`; ``None`` if it has none.

    They lack the next timers, and the event times of inputs that saw none in the micro-batch.
    """
    found = {code: number for code, number in FIGURE.findall(encoded) if code in _CODES}
    if not {_TIME, _WATERMARK} <= found.keys():
        return None
    return {
        "now_us": _unpacked(found[_TIME]),
        "watermark_us": _unpacked(found[_WATERMARK]),
        "seen_us": [_unpacked(found.get(code, "0")) for code in _SIDES],
        "active": [code in found for code in _SIDES],
        **_silence_of(found),
    }


def _silence_of(found: Mapping[str, str]) -> dict[str, Any]:
    now_us, watermark_us = _unpacked(found[_TIME]), _unpacked(found[_WATERMARK])
    ahead = int(found.get(_AHEAD, "0"), 36)
    marks = [_unpacked(found[code]) for code in _MARKS if code in found]
    since_us = _unpacked(found.get(_BEFORE, "0"))
    return {
        "marks_us": [_sum(us, watermark_us) for us in marks],
        "silent_us": [int(found.get(code, "0"), 36) for code in _SILENCES[: len(marks)]],
        "before_us": NO_TIME if since_us == NO_TIME else _difference(now_us, since_us),
        "only_ahead": [bool(ahead & 1 << side) for side in range(len(_SIDES))] if ahead else [],
    }


def _difference(us: int, base_us: int) -> int:
    """Return ``us`` by its distance from a base, which is 0 if there is no base."""
    return us if NO_TIME in {us, base_us} else us - base_us


def _sum(us: int, base_us: int) -> int:
    return us if NO_TIME in {us, base_us} else us + base_us


def _packed(us: int) -> str:
    if us == NO_TIME:
        return "0"
    return base_36(1 + (2 * us if us >= 0 else -2 * us - 1))


def _unpacked(text: str) -> int:
    number = int(text, 36) - 1
    if number < 0:
        return NO_TIME
    return number // 2 if number % 2 == 0 else -(number + 1) // 2
