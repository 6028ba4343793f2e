"""The view of an operator as plain data: for JSON, and for bug reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_engine.versions.format.figures import CALLS
from forebay_state_processor.observing.symptoms import symptoms_of

if TYPE_CHECKING:
    from datetime import datetime

    from forebay_state_processor.observing.figures_of_versions import VersionFigures
    from forebay_state_processor.observing.operators import StoredOperator
    from forebay_state_processor.observing.watching import OperatorView

_VERSIONS: Final = 10
_HOT_GROUPS: Final = 10


def plain_operator(operator: StoredOperator, view: OperatorView, now: datetime) -> dict[str, Any]:
    """Return the known figures of an operator as plain data; unknown numbers are ``None``."""
    newest, made, hot = view.newest, view.in_progress, view.hot_key_groups(_HOT_GROUPS)
    timeline, listing = view.timeline, view.listing
    growth, costs = timeline.growth("state_bytes"), view.request_costs
    return {
        "query": operator.query,
        "uid": operator.uid,
        "backend": view.backend,
        "version": None if newest is None else newest.version,
        "parallelism": None if newest is None else newest.parallelism,
        "max_parallelism": None if newest is None else newest.max_parallelism,
        "in_progress": None if made is None else attrs.asdict(made),
        "rows_in_per_s": timeline.rate("rows_in"),
        "rows_out_per_s": timeline.rate("rows_out"),
        "state_bytes": timeline.count("state_bytes"),
        "state_bytes_per_hour": None if growth is None else growth * 3_600,
        "keys": timeline.count("keys"),
        "hot_key_groups": None if hot is None else attrs.asdict(hot),
        "files": listing.data_files,
        "file_bytes": listing.data_bytes,
        "runs_max": timeline.count("runs_max"),
        "requests": None if costs is None else costs.plain(),
        "calls": {key: timeline.count(key) or 0 for key in CALLS},
        "compactions": {
            "pending": timeline.count("compactions_pending"),
            "running": view.running_compactions(now),
        },
        "pins": {
            "readers": len(listing.reader_pins(now)),
            "savepoints": listing.savepoints,
            "forks": view.held_by_forks,
        },
        "is_fork": listing.is_fork,
        "not_reported": view.unknown,
        "symptoms": [attrs.asdict(one) for one in symptoms_of(view)],
        "versions": [plain_version(one) for one in timeline.versions[:_VERSIONS]],
    }


def plain_version(version: VersionFigures) -> dict[str, Any]:
    """Return the figures of a version as plain data."""
    slowest = version.slowest
    return {
        "version": version.version,
        "batch": version.batch,
        "committed": version.committed,
        "rows_in": version.count("rows_in"),
        "rows_out": version.count("rows_out"),
        "written_bytes": version.count("written_bytes"),
        "slowest_subtask": None if slowest is None else slowest.subtask,
        "slowest_ms": version.slowest_ms,
        "slowest_phase_ms": {} if slowest is None else slowest.figures.phase_ms,
        "phase_ms": version.phase_ms,
    }
