"""The kinds of things that plugins provide, how they are named, and the error for a missing one."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final

import attrs


@attrs.frozen(eq=False)
class PluginKind:
    """One hook: the things that it returns, and how they are named."""

    hook: str
    noun: str
    attribute: str
    """The attribute that holds the name: ``name``, ``format`` or ``schemes``."""
    versioned: bool
    """Whether ``contract_version`` is required; if it is set, it is always checked."""
    several: bool = False
    """Whether the attribute may be a tuple, of all names of one thing."""
    contract: str = ""
    """The class that the things derive from, as ``module:name``; empty: none."""
    is_class: bool = False
    """Whether the things are classes themselves."""
    method: str = ""
    """A method that the things have, where they need no common class."""
    has_options: bool = False
    """Whether the things declare settings."""
    asked_by: str = ""
    """The module that asks for the things, if it is not always installed; empty: any process."""
    known: Mapping[str, str] = attrs.field(factory=dict)
    """Name → distribution, for things that the project itself publishes."""


BACKENDS: Final = PluginKind(
    "forebay_state_backends",
    "state backend",
    "name",
    versioned=True,
    contract="forebay_state_api.contract.backend:StateBackend",
    is_class=True,
    has_options=True,
    known={"heap": "forebay-backend-heap", "lsm": "forebay-backend-lsm"},
)
SERVICES: Final = PluginKind(
    "forebay_compaction_services",
    "compaction service",
    "name",
    versioned=True,
    contract="forebay_state_api.contract.compaction_service:CompactionService",
    is_class=True,
    has_options=True,
    known={"local": "forebay-engine", "ray": "forebay-compaction-ray"},
)
COMPACTORS: Final = PluginKind(
    "forebay_compactors",
    "compactor for the format",
    "format",
    versioned=True,
    method="compact",
    known={"lsm": "forebay-backend-lsm"},
)
OPERATORS: Final = PluginKind(
    "forebay_operators",
    "operator",
    "name",
    versioned=True,
    known=dict.fromkeys(("ordered_wait", "unordered_wait", "process"), "forebay-spark-runtime"),
)
STORAGES: Final = PluginKind(
    "forebay_storages",
    "storage for the URL scheme",
    "schemes",
    versioned=True,
    several=True,
    contract="forebay_state_api.contract.object_storage:ObjectStorage",
    is_class=True,
)
COMMANDS: Final = PluginKind(
    "forebay_commands",
    "command",
    "name",
    versioned=False,
    contract="click:Command",
    asked_by="forebay_cli",
    known={
        "compaction": "forebay-compaction-ray",
        "console": "forebay-console",
        "demo": "forebay-spark-runtime",
        "import-tws": "forebay-spark-runtime",
        "lsm": "forebay-backend-lsm",
        "ticks": "forebay-spark-runtime",
    },
)
KINDS: Final = (BACKENDS, SERVICES, COMPACTORS, OPERATORS, STORAGES, COMMANDS)


def missing_message(kind: PluginKind, name: str, installed: list[str]) -> str:
    """Return a message with the installed names, the likely intended one, or what to install.

    Only the project's own distributions are suggested: anyone could register another name.
    """
    text = f"no {kind.noun} {name!r}; installed: {', '.join(installed) or 'none'}"
    if name in kind.known:
        return f"{text} - it comes with: pip install {kind.known[name]}"
    if close := difflib.get_close_matches(name, [*installed, *kind.known], n=1):
        return f"{text} - did you mean {close[0]!r}?"
    return f"{text} - install the distribution that brings it"
