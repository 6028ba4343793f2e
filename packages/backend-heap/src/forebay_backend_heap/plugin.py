"""What the entry point ``heap`` of the group ``forebay`` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_state_api.plugins import hookimpl

if TYPE_CHECKING:
    from forebay_backend_heap.backend import HeapBackend


@hookimpl
def forebay_state_backends() -> type[HeapBackend]:
    """Give the heap backend; imported here, so that listing plugins stays cheap."""
    from forebay_backend_heap.backend import HeapBackend

    return HeapBackend
