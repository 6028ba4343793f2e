"""Bars that divide the time of a subtask among its phases.

Each column is the letter of its phase, so a bar can be read without colours too. The names of
manifests use the same letters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from rich.text import Text

from forebay_engine.versions.format.figures import PHASES

_STYLES: Final = {
    "input": "black on bright_blue",
    "open": "black on bright_magenta",
    "decode": "black on cyan",
    "read_ahead": "black on yellow",
    "state_wait": "black on bright_yellow",
    "call_wait": "black on bright_red",
    "function": "black on green",
    "output": "black on bright_cyan",
    "output_wait": "black on blue",
    "rest": "black on white",
}
_COMMIT: Final = "black on red"


def phase_bar(phase_ms: Mapping[str, int], width: int) -> Text:
    """Return a bar of ``width`` columns in which phases have their shares of the time."""
    bar = Text(no_wrap=True)
    for phase, columns in _columns(phase_ms, width).items():
        bar.append(PHASES[phase] * columns, _STYLES.get(phase, _COMMIT))
    return bar


def phase_legend(phases: Iterable[str]) -> Text:
    """Return the letters of phases with their names."""
    wanted = set(phases)
    legend = Text()
    for phase in filter(wanted.__contains__, PHASES):
        legend.append("  " if legend else "")
        legend.append(PHASES[phase], _STYLES.get(phase, _COMMIT))
        legend.append(f" {phase}")
    return legend


def _columns(phase_ms: Mapping[str, int], width: int) -> dict[str, int]:
    """Divide ``width`` columns by the phases' ends, so that rounding adds up."""
    total, end, before = sum(phase_ms.values()), 0, 0
    found = {}
    for phase in filter(phase_ms.__contains__, PHASES):
        end += phase_ms[phase]
        after = round(width * end / total) if total else 0
        if after > before:
            found[phase] = after - before
        before = after
    return found
