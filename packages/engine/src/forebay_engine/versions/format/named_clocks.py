"""The clocks of a subtask that its manifest's name carries, because every subtask needs them all.

They come before the figures and look like them: a code and a number in base 36. Codes are ``XN``
for the time, ``XW`` for the watermark, and ``XA`` and ``XB`` for the latest event time of each
input that saw any in the micro-batch. A number is 0 for a time before all others; otherwise it is
one more than twice the µs since the epoch, or than twice the µs before it less one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from forebay_engine.versions.format.figures import FIGURE, base_36
from forebay_state_api.contract.backend import NO_TIME

_SIDES: Final = ("XA", "XB")
_CODES: Final = frozenset({"XN", "XW", *_SIDES})


def clocks_text(times: Mapping[str, Any]) -> str:
    """Return the clocks in `Manifest.times` as in a name, in 60 characters at most.

    Empty for a subtask without clocks, and for one with more inputs than a name holds.
    """
    if "watermark_us" not in times or len(times["seen_us"]) > len(_SIDES):
        return ""
    inputs = zip(_SIDES, times["seen_us"], times["active"], strict=False)
    seen = [f"{code}{_packed(us)}" for code, us, active in inputs if active]
    return "".join([f"XN{_packed(times['now_us'])}", f"XW{_packed(times['watermark_us'])}", *seen])


def clocks_of(encoded: str) -> Mapping[str, Any] | None:
    """Return the clocks in a name as in `Manifest.times`; ``None`` if it has none.

    They lack the next timers, and the event times of inputs that saw none in the micro-batch.
    """
    found = {code: _unpacked(number) for code, number in FIGURE.findall(encoded) if code in _CODES}
    if not {"XN", "XW"} <= found.keys():
        return None
    return {
        "now_us": found["XN"],
        "watermark_us": found["XW"],
        "seen_us": [found.get(code, NO_TIME) for code in _SIDES],
        "active": [code in found for code in _SIDES],
    }


def _packed(us: int) -> str:
    if us == NO_TIME:
        return "0"
    return base_36(1 + (2 * us if us >= 0 else -2 * us - 1))


def _unpacked(text: str) -> int:
    number = int(text, 36) - 1
    if number < 0:
        return NO_TIME
    return number // 2 if number % 2 == 0 else -(number + 1) // 2
