"""The figures of one keyed operator in one micro-batch, read from a progress event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from forebay_engine.versions.format.manifest_metrics import text
from forebay_spark_runtime.driver.observed_figures import FIELD
from forebay_spark_runtime.driver.operator_names import uid_of_figures
from forebay_state_api.metrics import Phase
from forebay_state_api.metrics.keyed import READ_BOUNDS

_PHASE_KEYS = {phase: f"phase_seconds_{phase.value}" for phase in Phase}


@attrs.frozen(kw_only=True)
class OperatorBatch:
    """The figures of a keyed operator in one micro-batch, of all its subtasks together."""

    uid: str
    query: str
    """The query's name, or its id if it has none."""
    query_id: str
    run_id: str
    batch_id: int
    figures: Mapping[str, float]
    """Key → number, as the reference lists them; a number that is not known is absent."""

    def __str__(self) -> str:
        """The line of the driver's log."""
        where = f"operator {self.uid} of query {self.query}, batch {self.batch_id}"
        return f"{where}: {text(self.figures)}"

    @property
    def subtasks(self) -> int:
        """The number of subtasks that reported."""
        return int(self.figures.get("commits", 0))

    @property
    def phase_seconds(self) -> dict[Phase, float]:
        """Phase → seconds of all subtasks."""
        return {
            phase: self.figures[key] for phase, key in _PHASE_KEYS.items() if key in self.figures
        }

    def state_read_s(self, share: float) -> float | None:
        """Return the seconds within which ``share`` of the cells were read from storage.

        It is between two bounds of the buckets; ``None`` if nothing was read.
        """
        below, low = 0.0, 0.0
        wanted = share * self.figures.get("state_read_seconds_inf", 0)
        for bound in READ_BOUNDS[:-1]:
            found, high = self.figures.get(f"state_read_seconds_{bound}", 0), float(bound)
            if 0 < wanted <= found:
                return low + (high - low) * (wanted - below) / (found - below)
            below, low = found, high
        return low if wanted else None


def operators_of(progress: Any) -> list[OperatorBatch]:
    """Return the figures of each keyed operator in a progress event, by uid.

    ``progress`` is ``query.lastProgress``, one of ``query.recentProgress``, or the progress of an
    event. Without keyed operators, and for ``None``, there are none.
    """
    if progress is None:
        return []
    read = progress.__getitem__ if isinstance(progress, Mapping) else progress.__getattribute__
    query_id = str(read("id"))
    return [
        OperatorBatch(
            uid=uid,
            query=read("name") or query_id,
            query_id=query_id,
            run_id=str(read("runId")),
            batch_id=read("batchId"),
            figures=figures,
        )
        for uid, figures in sorted(_found(_observed(read)))
    ]


def _observed(read: Any) -> Mapping[str, Any]:
    try:
        return read("observedMetrics") or {}
    except KeyError:  # an event of an older Spark, without any
        return {}


def _found(observed: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, float]]]:
    for name, row in observed.items():
        uid = uid_of_figures(name)
        if uid is not None and isinstance(figures := _figures(row), Mapping):
            yield uid, {key: number for key, number in figures.items() if number is not None}


def _figures(row: Any) -> Any:
    """Return the first field of an observed row; Spark Connect drops the names of fields."""
    values = row.asDict(recursive=True) if hasattr(row, "asDict") else row
    return values[FIELD] if FIELD in values else next(iter(values.get("values", ())), None)
