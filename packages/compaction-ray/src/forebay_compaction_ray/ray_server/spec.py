"""The complete configuration of a gateway, which is sent to its actor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs

from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_compaction_ray.gateway.security import SecurityFiles
from forebay_compaction_ray.gateway.workers import POLICIES
from forebay_compaction_ray.worker.body import WorkerStorage
from forebay_state_api.settings import SettingType, one_of, option

LOCAL: Final = "local"
"""The address of a private Ray on this machine."""


def _port(given: object) -> int:
    if (port := int(str(given))) not in range(65536):
        raise ValueError(given)
    return port


PORT: Final = SettingType("a port up to 65535", _port)


@attrs.frozen(kw_only=True)
class GatewaySpec:
    """A gateway's listening address, workers and limits.

    The declared settings are options of ``forebay compaction start``.
    """

    workers: int = option(int, 1, "Workers to start.", minimum=1)
    host: str = option(str, "127.0.0.1", "Interface to listen on.")
    port: int = option(PORT, 9461, "Port to listen on; 0 takes a free one.")
    policy: str = option(
        one_of(*POLICIES), "least-occupied", f"Which worker gets a job: {' or '.join(POLICIES)}."
    )
    worker_cpus: float = option(float, 1.0, "CPUs of the cluster that a worker takes.", minimum=0)
    metrics_port: int | None = option(
        PORT, None, "Port for metrics in Prometheus' format.", minimum=1
    )
    storages: Mapping[str, WorkerStorage] = attrs.field(factory=dict)
    worker_resources: Mapping[str, float] = attrs.field(factory=dict)
    """Other resources that a worker takes, such as ``{"ssd": 1}``."""
    detached: bool = False
    """Whether the gateway ends itself when it is stopped, because no process waits for it."""
    limits: GatewayLimits = attrs.field(factory=GatewayLimits)
    security: SecurityFiles = attrs.field(factory=SecurityFiles)
