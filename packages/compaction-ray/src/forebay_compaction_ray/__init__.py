"""Compaction as a service: the client for Spark's workers, and a gateway over Ray actors."""

from forebay_compaction_ray.client.endpoints import EndpointList, Endpoints
from forebay_compaction_ray.client.service import RemoteCompactionService

__all__ = ["EndpointList", "Endpoints", "RemoteCompactionService"]
