"""Defines the events that clients count, and the names of client and gateway metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Labels = tuple[tuple[str, str], ...]

EVENTS: Final[Mapping[str, str]] = {
    "submitted": "Jobs sent.",
    "retries": "Jobs sent again, after a worker or a gateway had not done them.",
    "done": "Jobs done and verified.",
    "small": "Jobs that stayed in the process because of `min-bytes`.",
    "lost": "Jobs that a worker or a gateway had, and did not do.",
    "failed": "Jobs that failed their task.",
    "no_endpoint": "Jobs compacted in the process because all gateways had been removed.",
    "stale": "Results that came too late: an input was no longer live. The janitor deletes them.",
    "unreachable": "Gateways that did not answer.",
    "refused": "Gateways that refused to serve the client.",
    "verify_failures": "Outputs that did not match their result: check the workers' storage.",
    "fallbacks:unreachable": "Jobs compacted in the process because no gateway was reachable.",
    "fallbacks:refused": "The same, because gateways refused them: full, draining, another token.",
    "fallbacks:limits": "The same, because they are above the gateways' limits.",
    "fallbacks:storage": "The same, because the gateways do not have the state directory.",
    "fallbacks:queue": "The same, after too long without a worker, or at a worker.",
    "fallbacks:attempts": "The same, after all attempts were lost.",
}
"""Event → meaning. Clients count these and report them to gateways; a cause follows a colon."""


def shown(name: str, labels: Labels) -> str:
    """Return the name as Prometheus writes it."""
    if not labels:
        return name
    inside = ",".join(f'{key}="{value}"' for key, value in labels)
    return f"{name}{{{inside}}}"
