"""The plugin module that the entry point of the group ``forebay`` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_state_api.plugins import hookimpl

if TYPE_CHECKING:
    import click

    from forebay_backend_lsm.backend import LsmBackend
    from forebay_backend_lsm.compactor import LsmCompactor


@hookimpl
def forebay_state_backends() -> type[LsmBackend]:
    """Return the lsm backend."""
    from forebay_backend_lsm.backend import LsmBackend

    return LsmBackend


@hookimpl
def forebay_compactors() -> LsmCompactor:
    """Return the compactor of its files."""
    from forebay_backend_lsm.compactor import LsmCompactor

    return LsmCompactor()


@hookimpl
def forebay_commands() -> click.Command:
    """Return the command ``forebay lsm``."""
    from forebay_cli.lazy import LazyCommand

    return LazyCommand(
        "lsm",
        "forebay_backend_lsm.commands:lsm",
        "Inspect and verify the sorted files of the lsm backend.",
    )
