"""The kinds of things that plugins give, how each is named, and what to say when one is absent."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final

import attrs


@attrs.frozen(eq=False)
class Kind:
    """One hook: what it gives, and how that is named."""

    hook: str
    noun: str
    attribute: str
    """Where a name stands: ``name``, ``format`` or ``schemes``."""
    versioned: bool
    """Whether ``contract_version`` must be stated; where it is stated it is checked anyway."""
    known: Mapping[str, str] = attrs.field(factory=dict)
    """Name → distribution, for what the project itself publishes."""


BACKENDS: Final = Kind(
    "forebay_state_backends",
    "state backend",
    "name",
    versioned=True,
    known={"heap": "forebay-backend-heap", "lsm": "forebay-backend-lsm"},
)
SERVICES: Final = Kind(
    "forebay_compaction_services",
    "compaction service",
    "name",
    versioned=True,
    known={"local": "forebay-state-api", "ray": "forebay-compaction-ray"},
)
COMPACTORS: Final = Kind(
    "forebay_compactors",
    "compactor for the format",
    "format",
    versioned=True,
    known={"lsm": "forebay-backend-lsm"},
)
OPERATORS: Final = Kind(
    "forebay_operators",
    "operator",
    "name",
    versioned=True,
    known=dict.fromkeys(("ordered_wait", "unordered_wait", "process"), "forebay-spark-runtime"),
)
STORAGES: Final = Kind(
    "forebay_storages",
    "storage for the URL scheme",
    "schemes",
    versioned=True,
)
COMMANDS: Final = Kind(
    "forebay_commands",
    "command",
    "name",
    versioned=False,
    known={"demo": "forebay-spark-runtime"},
)
KINDS: Final = (BACKENDS, SERVICES, COMPACTORS, OPERATORS, STORAGES, COMMANDS)


def unknown(kind: Kind, name: str, installed: list[str]) -> str:
    """Say what is installed, what may have been meant, and for our own names what to install.

    No name of a distribution is made up: anyone could have registered it.
    """
    text = f"no {kind.noun} {name!r}; installed: {', '.join(installed) or 'none'}"
    if name in kind.known:
        return f"{text} - it comes with: pip install {kind.known[name]}"
    if close := difflib.get_close_matches(name, [*installed, *kind.known], n=1):
        return f"{text} - did you mean {close[0]!r}?"
    return f"{text} - install the distribution that brings it"
