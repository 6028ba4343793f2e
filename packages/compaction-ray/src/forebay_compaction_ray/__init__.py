"""Compaction as a service: the client for Spark's workers, and a gateway over Ray actors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay_compaction_ray.client.endpoints import EndpointList, Endpoints

__all__ = ["EndpointList", "Endpoints"]


def __getattr__(name: str) -> Any:
    """Import a public name on first use: no ``forebay`` command waits for the client."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from forebay_compaction_ray.client import endpoints

    return getattr(endpoints, name)
