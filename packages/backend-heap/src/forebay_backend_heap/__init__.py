"""The heap backend of Forebay: keyed state in dictionaries, deltas and snapshots on storage."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay_backend_heap.backend import HeapBackend

__all__ = ["HeapBackend"]


def __getattr__(name: str) -> Any:
    """Import the backend on first use: the ``forebay`` command does not need it."""
    if name == "HeapBackend":
        from forebay_backend_heap.backend import HeapBackend

        return HeapBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
