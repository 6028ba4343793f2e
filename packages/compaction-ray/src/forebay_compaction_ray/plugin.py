"""What the entry point of the group ``forebay`` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_state_api.plugins import hookimpl

if TYPE_CHECKING:
    import click

    from forebay_compaction_ray.client.service import RemoteCompactionService
    from forebay_compaction_ray.worker.noop_compactor import NoopCompactor


@hookimpl
def forebay_compaction_services() -> type[RemoteCompactionService]:
    """Give the client."""
    from forebay_compaction_ray.client.service import RemoteCompactionService

    return RemoteCompactionService


@hookimpl
def forebay_compactors() -> NoopCompactor:
    """Give the compactor of empty jobs, with which a round trip is tried."""
    from forebay_compaction_ray.worker.noop_compactor import NoopCompactor

    return NoopCompactor()


@hookimpl
def forebay_commands() -> click.Command:
    """Give ``forebay compaction``."""
    from forebay_compaction_ray.commands.group import compaction

    return compaction
