"""The disaggregated backend of Forebay: sorted files on object storage, read in batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_state_api.lazy_names import import_on_first_use

if TYPE_CHECKING or not import_on_first_use(__name__):
    from forebay_backend_lsm.backend import LsmBackend as LsmBackend
