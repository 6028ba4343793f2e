"""The plugin of the command line: its own commands, imported when they run.

``plugins`` and ``config`` show the installed plugins and the resolved settings; ``state`` looks
into committed state; ``janitor``, ``doctor``, ``savepoint`` and ``recover`` maintain state
directories; ``top`` watches them, ``explain`` says why a micro-batch took long, and ``bundle``
makes an archive for a bug report.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forebay_state_api.plugins import hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def forebay_commands() -> Sequence[click.Command]:
    """Return the commands of this package."""
    from forebay_cli.installed import COMMANDS

    return COMMANDS
