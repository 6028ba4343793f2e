"""The plugin of state-api itself: the ``local`` compaction service, storages, and commands.

The commands ``plugins`` and ``config`` show the installed plugins and the resolved settings;
``janitor``, ``doctor`` and ``recover`` maintain state directories; ``top`` watches them, and
``explain`` says why a micro-batch took long; ``bundle`` makes an archive for a bug report.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forebay_state_api.contract.hookspecs import hookimpl

if TYPE_CHECKING:
    import click

    from forebay_state_api.contract.compaction_service import CompactionService
    from forebay_state_api.contract.object_storage import ObjectStorage


@hookimpl
def forebay_compaction_services() -> type[CompactionService]:
    """Return the service that compacts in the worker's own process."""
    from forebay_state_api.compaction.local_service import LocalCompactionService

    return LocalCompactionService


@hookimpl
def forebay_storages() -> Sequence[type[ObjectStorage]]:
    """Return the storages for directories, URLs of object stores and fsspec's file systems."""
    from forebay_state_api.storage import clouds, fsspec, obstore

    return [
        obstore.LocalStorage,
        obstore.MemoryStorage,
        clouds.S3Storage,
        clouds.GcsStorage,
        clouds.AzureStorage,
        clouds.HttpStorage,
        fsspec.FsspecStorage,
    ]


@hookimpl
def forebay_commands() -> Sequence[click.Command]:
    """Return the commands of this package."""
    from forebay_state_api.commands.installed import COMMANDS

    return COMMANDS
