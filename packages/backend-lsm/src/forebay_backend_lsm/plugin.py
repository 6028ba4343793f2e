"""What the entry point of the group ``forebay`` names."""

from __future__ import annotations

from forebay_backend_lsm.backend import LsmBackend
from forebay_backend_lsm.compactor import LsmCompactor
from forebay_state_api.plugins import hookimpl


@hookimpl
def forebay_state_backends() -> type[LsmBackend]:
    """Give the lsm backend."""
    return LsmBackend


@hookimpl
def forebay_compactors() -> LsmCompactor:
    """Give the compactor of its files."""
    return LsmCompactor()
