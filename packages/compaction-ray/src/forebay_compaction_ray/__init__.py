"""Compaction as a service: the client for Spark's workers, and a gateway over Ray actors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_state_api.lazy_names import import_on_first_use

if TYPE_CHECKING or not import_on_first_use(__name__):
    from forebay_compaction_ray.client.endpoints import (
        EndpointList as EndpointList,
        Endpoints as Endpoints,
    )
