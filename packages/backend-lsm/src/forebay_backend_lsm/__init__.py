"""The disaggregated backend of Forebay: sorted files on object storage, read in batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay_backend_lsm.backend import LsmBackend

__all__ = ["LsmBackend"]


def __getattr__(name: str) -> Any:
    """Import the backend on first use: the ``forebay`` command does not need it."""
    if name == "LsmBackend":
        from forebay_backend_lsm.backend import LsmBackend

        return LsmBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
