"""The bounds and periods of a gateway."""

from __future__ import annotations

import attrs

from forebay_state_api.settings import BYTES, DURATION, option

_SOON_S = 0.001


@attrs.frozen(kw_only=True)
class GatewayLimits:
    """What a gateway takes, and how long it waits.

    Those that are settings are options of ``forebay compaction start``.
    """

    slots: int = option(int, 1, "Jobs of a worker at once.", minimum=1)
    queue: int = option(
        int,
        64,
        "Jobs that may wait; more are refused, and submitted again later.",
        minimum=0,
    )
    job_bytes: int = option(
        BYTES,
        "8g",
        "Input of one job; a larger one is refused for good, and the query stops.",
        minimum=1,
        name="max-job-bytes",
    )
    stall_timeout_s: float = option(
        DURATION,
        "60s",
        "A worker that is silent for so long, or makes no step in a job, is killed.",
        minimum=_SOON_S,
    )
    drain_timeout_s: float = option(
        DURATION,
        "120s",
        "Longest wait for running jobs at `drain`, `stop` and `scale`.",
        minimum=_SOON_S,
    )
    deaths: int = option(
        int,
        2,
        "Workers that may die at the same work until it gets no further one.",
        minimum=1,
        name="max-deaths",
    )
    jobs_per_client: int = 16
    """Jobs of one client that may wait or run."""
    inputs: int = 1024
    """Input files of one job."""
    ping_every_s: float = 2.0
    ping_misses: int = 3
    """After so many pings without an answer a worker gets no more jobs."""
    abort_timeout_s: float = 10.0
    """A job that does not stop within this is stopped by killing its worker."""
    poll_wait_s: float = 20.0
    """Longest wait of one poll."""
    remembered: int = 1024
    """Ended jobs that are remembered at most; a lease may end earlier."""
