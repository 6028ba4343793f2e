"""The measurements of one subtask in one micro-batch: time by phase, and requests to storage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from forebay_engine.execution.counted_storage import RequestCounts, counted
from forebay_state_api.metrics.fields import keyed_figures
from forebay_state_api.metrics.histogram import Histogram
from forebay_state_api.metrics.keyed import READ_BOUNDS
from forebay_state_api.metrics.phases import PhaseClock

if TYPE_CHECKING:
    from forebay_state_api.contract.files import CommittedState
    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_api.metrics.calls import CallMetrics


class SubtaskMetrics:
    """The measurements of one subtask. A runtime makes one when its task begins."""

    def __init__(self) -> None:
        self.clock = PhaseClock()
        """Replaced while records go on between two calls; a runtime keeps its own reference."""
        self.group_rows: Callable[[], Sequence[int]] | None = None
        """Returns the rows by key group of the subtask, if the runtime counts them."""
        self._requests: RequestCounts | None = None
        self._opened_bytes = 0
        self._access: dict[str, Histogram] = {}

    def note_access(self, state: str, seconds: float, cells: int) -> None:
        """Count a batch of reads of a state. Callable from any thread."""
        self._access.setdefault(state, Histogram()).add_times(seconds, cells)

    def access(self) -> dict[str, dict[str, int]]:
        """Return state → bucket of `Histogram` → cells that were read in such a time."""
        return {
            state: {str(bucket): times for bucket, times in sorted(found.counts.items())}
            for state, found in self._access.items()
        }

    def reads(self) -> dict[str, float]:
        """Return the buckets of read times, by the keys of metrics; empty if nothing was read."""
        every = Histogram()
        for of_state in self._access.values():
            every.include(of_state)
        found = {bound: every.at_most(float(bound)) for bound in READ_BOUNDS[:-1]}
        found["inf"] = every.counts.total()
        return {f"state_read_seconds_{b}": n for b, n in found.items()} if every else {}

    def counted(self, storage: ObjectStorage) -> ObjectStorage:
        """Return ``storage``, whose requests are counted from now on."""
        self._requests = self._requests or RequestCounts()
        return counted(storage, self._requests)

    def opened(self) -> None:
        """Note that the version is open: what was read until now restored it."""
        self._opened_bytes = 0 if self._requests is None else self._requests.read_bytes

    def rows_of_groups(self) -> dict[str, float]:
        """Return the rows of the key group with the most; empty if they are not counted."""
        rows = None if self.group_rows is None else self.group_rows()
        return {} if rows is None else {"group_rows_max": max(rows, default=0)}

    def phases(self) -> dict[str, float]:
        """Return the time so far by phase, by the keys of progress events."""
        return phase_figures(self.clock)

    def storage(self) -> dict[str, float]:
        """Return the requests so far; empty if they are not counted."""
        if self._requests is None:
            return {}
        kinds = self._requests.by_kind()
        return {
            **{f"storage_requests_{kind}": count for kind, count in kinds.items()},
            "restored_bytes": self._opened_bytes,
        }


def phase_figures(clock: PhaseClock) -> dict[str, float]:
    """Return the time so far by phase, by the keys of metrics."""
    return {f"phase_seconds_{p}": round(s, 6) for p, s in clock.seconds().items()}


def figures_of(calls: CallMetrics) -> dict[str, float]:
    """Return the counts of ``ctx.call`` by the keys of metrics."""
    found = keyed_figures(calls)
    for bound in READ_BOUNDS[:-1]:
        found[f"call_seconds_{bound}"] = calls.latency.at_most(float(bound))
    found["call_seconds_inf"] = calls.latency.counts.total()
    return found


def commit_figures(committed: CommittedState) -> dict[str, Any]:
    """Return the sizes of a commit by the keys of metrics; unknown sizes are absent."""
    sizes = {
        "commits": 1,
        "keys": committed.keys,
        "keys_new": committed.keys_new,
        "keys_removed": committed.keys_removed,
        "state_bytes": committed.bytes_total,
        "written_bytes": committed.bytes_written,
    }
    return {key: size for key, size in sizes.items() if size is not None}
