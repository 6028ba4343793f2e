"""The commands of this package; each is imported when it runs."""

from __future__ import annotations

from typing import Final

import click

from forebay_cli.lazy import LazyCommand

_HERE: Final = "forebay_cli"

COMMANDS: Final[list[click.Command]] = [
    LazyCommand(
        "plugins",
        f"{_HERE}.plugins_and_config:show_plugins",
        "Print the installed plugins: distributions, versions, and what each provides.",
    ),
    LazyCommand(
        "config",
        f"{_HERE}.plugins_and_config:show_config",
        "Print every setting, its value, and where the value comes from.",
    ),
    LazyCommand(
        "state",
        f"{_HERE}.state.group:state",
        "Look into committed state, and mend it; nothing of a running job is disturbed.",
    ),
    LazyCommand(
        "top",
        f"{_HERE}.live.top:top",
        "Show running operators: rates, time by phase, state, hot key groups, compaction.",
    ),
    LazyCommand(
        "explain",
        f"{_HERE}.live.explain:explain",
        "Say in one paragraph why a micro-batch took long, and what changes it.",
    ),
    LazyCommand(
        "bundle",
        f"{_HERE}.live.bundle:bundle",
        "Write one archive for a bug report: versions, settings, shapes and metrics.",
    ),
    LazyCommand(
        "janitor",
        f"{_HERE}.upkeep.janitor_and_doctor:janitor",
        "Delete the parts of one operator's state that nobody can open any more.",
    ),
    LazyCommand(
        "doctor",
        f"{_HERE}.upkeep.janitor_and_doctor:doctor",
        "Probe whether a storage behaves as versions require, and whether all plugins work.",
    ),
    LazyCommand(
        "savepoint",
        f"{_HERE}.upkeep.savepoint:savepoint",
        "Keep versions of a query's state under a name.",
    ),
    LazyCommand(
        "answers",
        f"{_HERE}.upkeep.answers:answers",
        "Delete answers that ctx.kept_call and keep_answers= keep.",
    ),
    LazyCommand(
        "recover",
        f"{_HERE}.upkeep.recover:recover",
        "Print the timelines of an operator's state, or choose the one that continues.",
    ),
]
"""Sub-commands of ``forebay``."""
