"""Defines the events that clients count, and the metrics that both sides make of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from forebay_state_api.metrics import Metric, MetricKind

EVENTS: Final[Mapping[str, str]] = {
    "submitted": "Jobs sent.",
    "retries": "Jobs sent again, after a worker or a gateway had not done them.",
    "done": "Jobs done and verified.",
    "small": "Jobs that stayed in the process because of `min-bytes`.",
    "lost": "Jobs that a worker or a gateway had, and did not do.",
    "failed": "Jobs that failed their task.",
    "no_endpoint": "Jobs compacted in the process because all gateways had been removed.",
    "stale": "Results that came too late: an input was no longer live. The janitor deletes them.",
    "unreachable": "Calls to gateways that did not answer, or had not before.",
    "refused": "Offers of jobs that gateways refused, or would have: the client asks first.",
    "verify_failures": "Outputs that did not match their result: check the workers' storage.",
    "fallbacks:unreachable": "Jobs compacted in the process because no gateway was reachable.",
    "fallbacks:refused": "Jobs compacted in the process because gateways refused them: their "
    "queues were full, they were draining, or the token did not match.",
    "fallbacks:limits": "Jobs compacted in the process because they exceeded the gateways' limits.",
    "fallbacks:storage": "Jobs compacted in the process because the gateways do not have the state "
    "directory.",
    "fallbacks:queue": "Jobs compacted in the process because they waited for a worker, or ran, "
    "for too long.",
    "fallbacks:attempts": "Jobs compacted in the process because all attempts were lost.",
}
"""Event → meaning. Clients count these and report them to gateways; a cause follows a colon."""


def _client(what: str, kind: MetricKind, meaning: str, label: str = "", **more: Any) -> Metric:
    labels = (label,) if label else ()
    return Metric(
        area="compaction", what=f"client_{what}", kind=kind, meaning=meaning, labels=labels, **more
    )


HAPPENED: Final = _client(
    "events",
    MetricKind.COUNTER,
    "Events that clients report of their jobs, by event.",
    "event",
    values=tuple(event for event in EVENTS if ":" not in event),
)
FALLBACKS: Final = _client(
    "fallbacks",
    MetricKind.COUNTER,
    "Jobs that clients compacted in their own process, by cause.",
    "cause",
    values=tuple(event.partition(":")[2] for event in EVENTS if ":" in event),
)
REPORTED: Final = (HAPPENED, FALLBACKS)
"""The metrics that clients report to gateways, which serve their sums, and write to manifests."""


def counted_by(event: str) -> tuple[Metric, str]:
    """Return the metric that counts an event of `EVENTS`, and the value of its label."""
    name, _, cause = event.partition(":")
    return (FALLBACKS, cause) if cause else (HAPPENED, name)


def key_of(event: str) -> str:
    """Return the key of an event's count, as in manifests: ``client_fallbacks_queue``."""
    metric, value = counted_by(event)
    return f"{metric.key}_{value}"


def shown(name: str, labels: Mapping[str, str]) -> str:
    """Return the name as Prometheus writes it."""
    inside = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return f"{name}{{{inside}}}" if labels else name
