"""The complete configuration of a gateway, which is sent to its actor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_compaction_ray.gateway.security import SecurityFiles
from forebay_compaction_ray.worker.body import WorkerStorage

LOCAL: Final = "local"
"""The address of a private Ray on this machine."""


@attrs.frozen(kw_only=True)
class GatewaySpec:
    """A gateway's listening address, workers and limits."""

    host: str
    port: int
    """Not 0: a restarted gateway listens on the same port."""
    workers: int
    storages: Mapping[str, WorkerStorage]
    worker_cpus: float = 1.0
    """CPUs that a worker takes from Ray."""
    worker_resources: Mapping[str, float] = attrs.field(factory=dict)
    """Other resources that a worker takes, such as ``{"ssd": 1}``."""
    detached: bool = False
    """Whether the gateway ends itself when it is stopped, because nobody waits for it."""
    policy: str = "least-occupied"
    metrics_port: int | None = None
    """Port for Prometheus on the same host; ``None`` to serve no metrics."""
    limits: GatewayLimits = attrs.field(factory=GatewayLimits)
    security: SecurityFiles = attrs.field(factory=SecurityFiles)
