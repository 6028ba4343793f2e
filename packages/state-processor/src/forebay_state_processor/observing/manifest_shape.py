"""The shape of a manifest: numbers and types, and nothing that a user has stored.

Only what is listed here is taken, so that a new field of manifests is not in bug reports by
accident. Left out are, among others, files' metadata (first and last keys), the content of operator
state, and the addresses of gateways.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from forebay_engine.versions.format.manifest import TTL_US
from forebay_engine.versions.format.manifest_metrics import flat
from forebay_state_api.metrics.keyed import GROUP_ROWS

if TYPE_CHECKING:
    from forebay_engine.versions.format.manifest import Manifest
    from forebay_state_api.contract.files import StateFile

_LABELS: Final = re.compile(r"\{.*\}")
_KIND: Final = re.compile(r"([a-z]+)-")


def manifest_shape(manifest: Manifest) -> dict[str, Any]:
    """Return a manifest's numbers as plain data."""
    made = manifest.made
    return {
        "version": made.version,
        "subtask": made.subtask,
        "parallelism": made.parallelism,
        "max_parallelism": made.max_parallelism,
        "key_groups": [made.range.start, made.range.end],
        "epoch": made.epoch,
        "run_key": made.run_key,
        "attempt_id": made.attempt_id,
        "id": manifest.id,
        "parents": len(manifest.parents),
        "opened_version": manifest.opened_version,
        "batch_ms": manifest.batch_ms,
        "now_us": manifest.now_us,
        "backend": manifest.backend,
        "files": [_file_shape(file) for file in manifest.files],
        "protected": len(manifest.protected),
        "states": len(manifest.descriptions),
        "generations": {name: len(found) for name, found in manifest.generations.items()},
        "has_timers": bool(manifest.times),
        "metrics": metrics_shape(manifest.metrics),
    }


def _file_shape(file: StateFile) -> dict[str, Any]:
    kind = _KIND.match(file.name.rpartition("/")[2])
    return {
        "kind": kind[1] if kind else "",
        "size": file.size,
        "key_groups": [file.range.start, file.range.end],
    }


def metrics_shape(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a manifest's metrics; everything else in them is left out."""
    return {
        **flat(metrics),
        "opening_s": _number(metrics.get("opening_s")),
        TTL_US: _numbers(metrics.get(TTL_US, {})),
        "state_access_seconds": {
            state: _numbers(buckets)
            for state, buckets in metrics.get("state_access_seconds", {}).items()
        },
        "compaction": _numbers(metrics.get("compaction", {})),
        **{
            key: [_number(rows) for rows in metrics[key]] for key in (GROUP_ROWS,) if key in metrics
        },
    }


def _numbers(found: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a mapping, without the labels in their names."""
    known = ((_LABELS.sub("", name), _number(value)) for name, value in found.items())
    return {name: value for name, value in known if value is not None}


def _number(value: Any) -> float | None:
    return value if isinstance(value, int | float) else None
