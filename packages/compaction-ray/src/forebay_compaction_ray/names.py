"""What clients count, and how numbers of clients and gateways are called."""

from __future__ import annotations

from typing import Final

Labels = tuple[tuple[str, str], ...]

EVENTS: Final = frozenset(
    {
        "submitted",
        "small",
        "retries",
        "done",
        "lost",
        "failed",
        "no_endpoint",
        "stale",
        "unreachable",
        "refused",
        "verify_failures",
    }
)
"""What clients count, and tell gateways."""

FALLBACKS: Final = frozenset({"unreachable", "refused", "queue", "attempts"})
"""Why clients fall back; they count each as ``fallbacks:<cause>``."""


def shown(name: str, labels: Labels) -> str:
    """The name as Prometheus writes it."""
    if not labels:
        return name
    inside = ",".join(f'{key}="{value}"' for key, value in labels)
    return f"{name}{{{inside}}}"
