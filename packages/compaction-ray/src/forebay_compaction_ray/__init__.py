"""Compaction as a service: the client for Spark's workers, and a gateway over Ray actors."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from forebay_compaction_ray.client.endpoints import EndpointList, Endpoints
    from forebay_compaction_ray.client.service import RemoteCompactionService

__all__ = ["EndpointList", "Endpoints", "RemoteCompactionService"]

_HOMES: Final = {
    "EndpointList": "forebay_compaction_ray.client.endpoints",
    "Endpoints": "forebay_compaction_ray.client.endpoints",
    "RemoteCompactionService": "forebay_compaction_ray.client.service",
}
"""Public name → its module, imported on first use: no ``forebay`` command should wait for gRPC."""


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
