"""Everything that a gateway is started with; travels to its actor."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_compaction_ray.gateway.security import ServerSecurity
from forebay_compaction_ray.worker.body import WorkerStorage


@attrs.frozen(kw_only=True)
class GatewaySpec:
    """How a gateway listens, and what workers it has."""

    host: str
    port: int
    """Not 0: a gateway that begins again listens where it did."""
    workers: int
    storages: Mapping[str, WorkerStorage]
    worker_cpus: float = 1.0
    """What a worker takes of Ray's CPUs."""
    worker_resources: Mapping[str, float] = attrs.field(factory=dict)
    """What else it takes, such as ``{"ssd": 1}``."""
    detached: bool = False
    """Whether it ends itself when it is stopped: nobody waits for it."""
    policy: str = "least-occupied"
    metrics_port: int | None = None
    """Prometheus text on the same host; ``None`` for none."""
    limits: GatewayLimits = attrs.field(factory=GatewayLimits)
    security: ServerSecurity = attrs.field(factory=ServerSecurity)
