"""Figures: the numbers about a commit that its manifest's name carries, so that a list shows them.

A name has 255 characters, so figures are short: an upper-case code and a number in base 36 for
each, as in ``RI2sRO2sSB1h4w``. Phases are in milliseconds. A number that is not known has no code;
0 is a number. Readers ignore codes that they do not know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

if TYPE_CHECKING:
    from forebay_state_api.contract.files import StateFile

PHASES: Final[Mapping[str, str]] = {
    "input": "I",
    "open": "O",
    "decode": "D",
    "read_ahead": "A",
    "state_wait": "S",
    "call_wait": "C",
    "function": "F",
    "output": "U",
    "output_wait": "T",
    "commit_snapshot": "N",
    "commit_files": "W",
    "commit_check": "V",
    "commit_manifest": "M",
    "commit_install": "L",
    "rest": "R",
}
"""Phase of a micro-batch → code of its milliseconds."""

COUNTS: Final[Mapping[str, str]] = {
    "rows_in": "RI",
    "group_rows_max": "GR",
    "keys_touched": "KT",
    "timers_added": "TA",
    "timers_fired": "TF",
    "rows_out": "RO",
    "state_bytes": "SB",
    "keys": "KY",
    "written_bytes": "WB",
    "files": "FI",
    "runs_max": "RU",
    "compactions_pending": "CP",
    "restored_bytes": "RB",
    "failed_records": "FR",
    "late_rows": "LR",
    "late_rows_dropped": "LD",
    "puts_and_lists": "P",
    "gets": "G",
    "rows_ahead": "RA",
    "timers_registered": "TR",
}
"""Key of a metric → code. A code is stored, so it never changes its meaning. If a name has no room
for all of them, the last ones are left out: symptoms and alerts need the ones before
``puts_and_lists``. That and ``gets`` are the classes by which stores bill requests."""

CALLS: Final[Mapping[str, str]] = {
    "call_tries": "CT",
    "call_answered": "CA",
    "call_kept_bytes": "CB",
    "call_dropped": "CD",
}
"""Key of a metric of ``ctx.call`` → code. They come last, and only if they are not 0."""

ALL_COUNTS: Final[Mapping[str, str]] = {**COUNTS, **CALLS}

MOST_CHARACTERS: Final = 240
"""The longest name of an object below its folder; some stores write under a longer name first."""

_BY_CODE: Final = {code: name for name, code in {**PHASES, **ALL_COUNTS}.items()}
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
FIGURE: Final = re.compile(r"([A-Z]+)([0-9a-z]+)")
"""A code and its number."""


@attrs.frozen
class Figures:
    """The figures of one commit, by name; unknown figures are absent."""

    counts: Mapping[str, int] = attrs.field(factory=dict)
    """Key of a metric → number."""
    phase_ms: Mapping[str, int] = attrs.field(factory=dict)
    """Phase → milliseconds, of phases that took any."""

    def text(self, room: int) -> str:
        """Return the figures as in a manifest's name, as many as fit into ``room`` characters."""
        text = ""
        codes = {name: code for name, code in ALL_COUNTS.items() if name in self.counts}
        found = [f"{code}{base_36(self.counts[name])}" for name, code in codes.items()]
        times = [f"{PHASES[phase]}{base_36(ms)}" for phase, ms in self.phase_ms.items() if ms]
        for figure in (*times, *found):
            if len(text) + len(figure) > room:
                break
            text += figure
        return text

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the result of `text`."""
        found = {_BY_CODE.get(code): int(n, 36) for code, n in FIGURE.findall(text)}
        return cls(
            counts={name: found[name] for name in ALL_COUNTS if name in found},
            phase_ms={name: found[name] for name in PHASES if name in found},
        )

    @property
    def total_ms(self) -> int | None:
        """The time of the task in all phases; ``None`` if it was not measured."""
        return sum(self.phase_ms.values()) if self.phase_ms else None


NONE: Final = Figures()
"""No figures, as of a manifest that an older release wrote."""


def base_36(number: int) -> str:
    """Return a number that is not negative in base 36."""
    text = ""
    while number or not text:
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
    return text


def figures_of(
    metrics: Mapping[str, Any], files: Sequence[StateFile], protected: Sequence[str]
) -> Figures:
    """Return the figures of a commit: its manifest's metrics, files and protected names."""
    requests: Mapping[str, int] = metrics.get("storage_requests", {})
    known: dict[str, Any] = {
        "state_bytes": metrics.get("bytes_total"),
        "written_bytes": metrics.get("bytes_written"),
        "files": sum(file.data is None for file in files),
        "compactions_pending": sum(name.endswith("/") for name in protected),
        **({"gets": requests["get"]} if requests else {}),
        **({"puts_and_lists": requests["put"] + requests["list"]} if requests else {}),
        **{key: metrics[key] for key in COUNTS if key in metrics},
        **{key: metrics[key] for key in CALLS if metrics.get(key)},
    }
    seconds: Mapping[str, float] = metrics.get("phase_seconds", {})
    return Figures(
        counts={key: int(known[key]) for key in ALL_COUNTS if known.get(key) is not None},
        phase_ms={phase: round(seconds[phase] * 1_000) for phase in PHASES if phase in seconds},
    )
