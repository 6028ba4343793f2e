"""The limits and periods of a gateway."""

from __future__ import annotations

import attrs

from forebay_state_api.settings import BYTES, DURATION, option

_SOON_S = 0.001


@attrs.frozen(kw_only=True)
class GatewayLimits:
    """Limits on a gateway's jobs and on its waits.

    The declared settings are options of ``forebay compaction start``.
    """

    slots: int = option(int, 1, "Concurrent jobs of a worker.", minimum=1)
    queue: int = option(
        int,
        64,
        "Jobs that may wait; more are refused, and submitted again later.",
        minimum=0,
    )
    job_bytes: int = option(
        BYTES,
        "8g",
        "Largest input of one job; larger compactions stay in the query's own processes.",
        minimum=1,
        name="max-job-bytes",
    )
    stall_timeout_s: float = option(
        DURATION,
        "60s",
        "A worker that is silent, or makes no step in a job, for this long is killed.",
        minimum=_SOON_S,
    )
    drain_timeout_s: float = option(
        DURATION,
        "120s",
        "Longest wait for running jobs at `drain`, `stop` and `scale`.",
        minimum=_SOON_S,
    )
    check_s: float = 8.0
    """Longest wait for a worker's check of a storage."""
    inputs: int = 1024
    """Input files of one job."""
    ping_every_s: float = 2.0
    ping_misses: int = 3
    """After this many unanswered pings a worker gets no more jobs."""
    abort_timeout_s: float = 10.0
    """A job that does not stop within this time is stopped by killing its worker."""
    poll_wait_s: float = 20.0
    """Longest wait of one poll."""
    remembered: int = 1024
    """Most ended jobs that are remembered; a lease may end earlier."""
