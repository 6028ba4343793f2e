"""The heap backend of Forebay: keyed state in dictionaries, deltas and snapshots on storage."""

from __future__ import annotations

from forebay_backend_heap.backend import HeapBackend

__all__ = ["HeapBackend"]
