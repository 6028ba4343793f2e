"""What the entry point of the group ``forebay`` names."""

from __future__ import annotations

from forebay_backend_heap.backend import HeapBackend
from forebay_state_api.plugins import hookimpl


@hookimpl
def forebay_state_backends() -> type[HeapBackend]:
    """Give the heap backend."""
    return HeapBackend
