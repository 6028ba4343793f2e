"""What clients count, and how numbers of clients and gateways are called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Labels = tuple[tuple[str, str], ...]

EVENTS: Final[Mapping[str, str]] = {
    "submitted": "Jobs sent.",
    "retries": "Of these: not the first attempt.",
    "done": "Jobs done and verified.",
    "small": "Jobs that stayed in the process for `min-bytes`.",
    "lost": "Jobs whose end cannot be known, or that failed in passing: they are submitted again.",
    "failed": "Jobs that failed their task.",
    "no_endpoint": "Jobs compacted in the process, for all gateways had been removed.",
    "stale": "Results that came too late: an input had gone, and they were left to the janitor.",
    "unreachable": "Gateways that did not answer.",
    "refused": "Gateways that would not speak with the client.",
    "verify_failures": "Outputs that were not what the result said: look at the workers' storage.",
    "fallbacks:unreachable": "Jobs compacted in the process, for no gateway could be reached.",
    "fallbacks:refused": "The same, for gateways refused them: full, or draining.",
    "fallbacks:queue": "The same, after too long in a queue.",
    "fallbacks:attempts": "The same, after all attempts were lost.",
}
"""What clients count and tell gateways; a cause follows a colon."""


def shown(name: str, labels: Labels) -> str:
    """The name as Prometheus writes it."""
    if not labels:
        return name
    inside = ",".join(f'{key}="{value}"' for key, value in labels)
    return f"{name}{{{inside}}}"
