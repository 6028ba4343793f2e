"""The plugin module that the entry point of the group ``forebay`` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_state_api.plugins import hookimpl

if TYPE_CHECKING:
    import click

    from forebay_compaction_ray.client.service import RemoteCompactionService
    from forebay_compaction_ray.worker.noop_compactor import NoopCompactor


@hookimpl
def forebay_compaction_services() -> type[RemoteCompactionService]:
    """Return the client."""
    from forebay_compaction_ray.client.service import RemoteCompactionService

    return RemoteCompactionService


@hookimpl
def forebay_compactors() -> NoopCompactor:
    """Return the compactor of empty jobs, which tests a round trip."""
    from forebay_compaction_ray.worker.noop_compactor import NoopCompactor

    return NoopCompactor()


@hookimpl
def forebay_commands() -> click.Command:
    """Return the command ``forebay compaction``."""
    from forebay_cli.lazy import LazyCommand

    return LazyCommand(
        "compaction",
        "forebay_compaction_ray.commands.group:compaction",
        "Compaction as a service on Ray.",
    )
