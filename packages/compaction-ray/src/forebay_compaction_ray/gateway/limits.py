"""The bounds and periods of a gateway."""

from __future__ import annotations

import attrs


@attrs.frozen(kw_only=True)
class GatewayLimits:
    """What a gateway takes, and how long it waits."""

    queue: int = 64
    """Jobs that may wait."""
    jobs_per_client: int = 16
    """Jobs of one client that may wait or run."""
    job_bytes: int = 8 * 1024**3
    """Input of one job."""
    inputs: int = 1024
    """Input files of one job."""
    slots: int = 1
    """Jobs that a worker runs at once."""
    ping_every_s: float = 2.0
    ping_misses: int = 3
    """After so many pings without an answer a worker gets no more jobs."""
    stall_timeout_s: float = 60.0
    """A worker that is silent for so long, or makes no step in a job, is killed."""
    abort_timeout_s: float = 10.0
    """A job that does not stop within this is stopped by killing its worker."""
    drain_timeout_s: float = 120.0
    """Longest wait for running jobs when the gateway drains or a worker is taken away."""
    deaths: int = 2
    """Work that was running on so many workers when they died gets no further worker."""
    poll_wait_s: float = 20.0
    """Longest wait of one poll."""
    remembered: int = 1024
    """Ended jobs that are remembered at most; a lease may end earlier."""
