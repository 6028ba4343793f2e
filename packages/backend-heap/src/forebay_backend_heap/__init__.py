"""The heap backend of Forebay: keyed state in dictionaries, deltas and snapshots on storage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_state_api.lazy_names import import_on_first_use

if TYPE_CHECKING or not import_on_first_use(__name__):
    from forebay_backend_heap.backend import HeapBackend as HeapBackend
