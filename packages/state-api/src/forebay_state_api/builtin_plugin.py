"""The plugin of state-api itself: the storages that every installation has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from forebay_state_api.contract.hookspecs import hookimpl

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage


@hookimpl
def forebay_storages() -> Sequence[type[ObjectStorage]]:
    """Return the storages for directories, URLs of object stores and fsspec's file systems."""
    from forebay_state_api.storage import clouds, fsspec, obstore

    return [
        obstore.LocalStorage,
        obstore.MemoryStorage,
        clouds.S3Storage,
        clouds.GcsStorage,
        clouds.AzureStorage,
        clouds.HttpStorage,
        fsspec.FsspecStorage,
    ]
