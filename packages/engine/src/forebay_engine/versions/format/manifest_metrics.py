"""Figures: key → number, flat as in progress events, nested as in manifests, or text as in logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay_state_api.metrics.keyed import KEYED

_LABELLED = {
    key: (metric.key, value)
    for metric in KEYED
    if metric.values
    for key, value in zip(metric.keys, metric.values, strict=True)
}
_PLAIN = {metric.key for metric in KEYED if not metric.labels}


def nested(figures: Mapping[str, float]) -> dict[str, Any]:
    """Return flat figures as a manifest holds them: ``phase_seconds_open`` below its metric."""
    found: dict[str, Any] = {}
    for key, number in figures.items():
        if key in _LABELLED:
            outer, label = _LABELLED[key]
            found.setdefault(outer, {})[label] = number
        else:
            found[key] = number
    return found


def flat(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures of a manifest's metrics, flat; everything else in them is left out."""
    labelled = {
        key: metrics[outer][label]
        for key, (outer, label) in _LABELLED.items()
        if label in metrics.get(outer, ())
    }
    plain = {key: metrics[key] for key in _PLAIN if metrics.get(key) is not None}
    return {**plain, **labelled}


def text(figures: Mapping[str, float]) -> str:
    """Return flat figures as a log shows them, by key, without any that are rounded to zero."""
    rounded = {key: f"{number:,.3f}".rstrip("0").rstrip(".") for key, number in figures.items()}
    return ", ".join(f"{key} {number}" for key, number in sorted(rounded.items()) if number != "0")
