"""The plugin module that the entry point of the group ``forebay`` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_state_api.plugins import hookimpl

if TYPE_CHECKING:
    from forebay_backend_heap.backend import HeapBackend


@hookimpl
def forebay_state_backends() -> type[HeapBackend]:
    """Return the heap backend."""
    from forebay_backend_heap.backend import HeapBackend

    return HeapBackend
