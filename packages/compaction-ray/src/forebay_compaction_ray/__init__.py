"""Compaction as a service: the client for Spark's workers, and a gateway over Ray actors."""

from __future__ import annotations

from forebay_compaction_ray.client.endpoints import EndpointList, Endpoints

__all__ = ["EndpointList", "Endpoints"]
