"""Compaction of one operator: its jobs, as their folders show them, and the gateway's workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from forebay_state_api.errors import ForebayError

if TYPE_CHECKING:
    from forebay_console.watching import OperatorView
    from forebay_console.watching.gateway import WatchedGateway

_ROWS: Final = 100


def compaction(operator: OperatorView, gateway: WatchedGateway | None) -> Mapping[str, Any]:
    """Return the values for the template."""
    jobs = operator.listing.compactions
    return {
        "jobs": jobs[:_ROWS],
        "more": max(0, len(jobs) - _ROWS),
        "done": sum(job.is_done for job in jobs),
        "running": sum(not job.is_done for job in jobs),
        "pending": operator.timeline.count("compactions_pending"),
        "runs_max": operator.timeline.count("runs_max"),
        **gateway_of(gateway),
    }


def gateway_of(gateway: WatchedGateway | None) -> Mapping[str, Any]:
    """Return the gateway's description, or the problem with it."""
    if gateway is None:
        return {"gateway": None, "gateway_problem": ""}
    try:
        return {"gateway": gateway.view(), "gateway_problem": ""}
    except ForebayError as error:
        return {"gateway": None, "gateway_problem": str(error)}
