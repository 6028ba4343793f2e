"""``forebay state``: look into committed state. Each command is imported when it runs."""

from __future__ import annotations

from typing import Final

import click

from forebay_cli.lazy import LazyCommand

_HERE: Final = "forebay_cli.state"


@click.group("state")
def state() -> None:
    """Look into committed state, and mend it; nothing of a running job is disturbed."""


COMMANDS: Final = (
    LazyCommand(
        "ls",
        f"{_HERE}.ls:list_state",
        "List queries and their operators: versions, sizes, age, savepoints and readers.",
    ),
    LazyCommand(
        "get",
        f"{_HERE}.get:get_key",
        "Print what the states hold under a key, in one namespace.",
    ),
    LazyCommand("scan", f"{_HERE}.scan:scan_state", "Print rows of state, or timers, in no order."),
    LazyCommand(
        "diff",
        f"{_HERE}.diff:diff_versions",
        "Print what changed from one version to another.",
    ),
    LazyCommand(
        "history",
        f"{_HERE}.history:show_history",
        "Print what a key held in every version that is stored, the oldest first.",
    ),
    LazyCommand(
        "export",
        f"{_HERE}.export:export_state",
        "Write state to a file, or to storage if the name is a URL.",
    ),
    LazyCommand(
        "import",
        f"{_HERE}.import_tables:import_state",
        "Make an operator of tables, or mend the version that a stopped query opens next.",
    ),
    LazyCommand(
        "schema",
        f"{_HERE}.schema:show_schema",
        "Print the stored description of an operator's state.",
    ),
    LazyCommand(
        "skew",
        f"{_HERE}.skew:show_skew",
        "Print each subtask's share of an operator's state, and the largest compared to the mean.",
    ),
)

for _command in COMMANDS:
    state.add_command(_command)
