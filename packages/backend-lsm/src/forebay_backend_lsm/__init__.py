"""The disaggregated backend of Forebay: sorted files on object storage, read in batches."""

from __future__ import annotations

from forebay_backend_lsm.backend import LsmBackend

__all__ = ["LsmBackend"]
