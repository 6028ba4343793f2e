"""Phases in families: no more than a reader distinguishes by colour."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs


@attrs.frozen
class Family:
    """Phases that share a colour."""

    name: str
    """The family's name, which is also its class in the style sheet."""
    title: str
    phases: tuple[str, ...]


FAMILIES: Final = (
    Family("function", "function", ("function",)),
    Family("state", "state", ("read_ahead", "state_wait")),
    Family("calls", "calls", ("call_wait",)),
    Family("input", "input, decode", ("input", "decode")),
    Family("output", "output", ("output", "output_wait")),
    Family("open", "open", ("open",)),
    Family(
        "commit",
        "commit",
        ("commit_snapshot", "commit_files", "commit_check", "commit_manifest", "commit_install"),
    ),
    Family("rest", "rest", ("rest",)),
)
"""The families from the bottom of a bar to its top."""

NAMES: Final = tuple(family.name for family in FAMILIES)
"""The names of all families."""

_OF: Final = {phase: family for family in FAMILIES for phase in family.phases}


def family_of(phase: str) -> Family:
    """Return the family of a phase."""
    return _OF[phase]


def by_family(phase_ms: Mapping[str, float]) -> dict[str, float]:
    """Add the milliseconds of phases up."""
    found: dict[str, float] = {}
    for phase, ms in phase_ms.items():
        name = _OF[phase].name
        found[name] = found.get(name, 0.0) + ms
    return found
