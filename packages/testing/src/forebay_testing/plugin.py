"""The plugin module that the entry point of the group ``forebay`` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_state_api.plugins import hookimpl

if TYPE_CHECKING:
    import click


@hookimpl
def forebay_commands() -> click.Command:
    """Return the command ``forebay simulate``."""
    from forebay_cli.lazy import LazyCommand

    return LazyCommand(
        "simulate",
        "forebay_testing.simulate_command:simulate",
        "Play the versions' protocol against deaths, faults and sleeps, as seeds decide.",
    )
