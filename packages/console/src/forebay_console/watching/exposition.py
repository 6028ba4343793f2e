"""Metrics for Prometheus, from storage alone: the figures of versions, added up since the start.

Prometheus wants counters that only grow, and versions disappear from storage. So an operator's
counters begin at 0 when the console first looks at the state directory, and each version that is
committed later is added once, also if a listing misses it for a while. Where the query went back,
the versions that it makes again count again, as in the job's own metrics. After a restart of the
console counters begin at 0 again, which Prometheus expects of a process.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from forebay_console.watching.operator import HISTORY
from forebay_state_api.metrics import KEYED, Kind, Phase
from forebay_state_api.versions.figures import COUNTS

if TYPE_CHECKING:
    from forebay_console.watching.directory import StateDirectory
    from forebay_console.watching.operator import WatchedOperator
    from forebay_console.watching.summaries import VersionSummary
    from forebay_state_api.metrics import Metric as Definition

_PHASE: Final = "phase_seconds"
_COMMITS: Final = "commits"
_SHOWN: Final = tuple(m for m in KEYED if m.key in COUNTS or m.key in (_PHASE, _COMMITS))
"""The metrics that the names of manifests hold."""
_LABELS: Final = ("query", "uid")
_LEAST_COUNTED: Final = 4 * HISTORY
"""Versions that are known to be counted, at least: more than any timeline shows."""
_EVER: Final = datetime.min.replace(tzinfo=UTC)


class OperatorTotals:
    """The counters of one operator, and the gauges of its newest version."""

    def __init__(self) -> None:
        self._counted: dict[tuple[str, int], datetime] = {}
        """Identity of a version → when it was committed; all that were counted `_since`."""
        self._since = _EVER
        """Nothing committed earlier counts, wherever it turns up."""
        self.counts: Final[Counter[str]] = Counter()
        """Key of a counter → total; a key that was never known is missing."""
        self.phase_ms: Final[Counter[str]] = Counter()
        self.newest: VersionSummary | None = None

    def skip(self, versions: Iterable[VersionSummary]) -> None:
        """Leave versions out: they were committed before the console looked.

        Counters begin at 0: Prometheus sees no increase in a series that begins at another number.
        """
        self.counts[_COMMITS] = 0
        for one in versions:
            self.counts.update(dict.fromkeys(one.counts, 0))
            self.phase_ms.update(dict.fromkeys(one.phase_ms, 0))
            self._counted[one.identity] = one.committed
        self._forget_before(max(self._counted.values(), default=_EVER))

    def add(self, newest_first: Iterable[VersionSummary]) -> None:
        """Add the versions that were not counted yet."""
        versions = list(newest_first)
        for one in versions:
            if one.identity not in self._counted and one.committed >= self._since:
                self._add(one)
        if len(self._counted) > 2 * _LEAST_COUNTED:
            self._forget_before(sorted(self._counted.values())[-_LEAST_COUNTED])
        self.newest = versions[0] if versions else None

    def _forget_before(self, moment: datetime) -> None:
        """Forget which versions were counted, of those that can count no more."""
        self._since = moment
        self._counted = {one: at for one, at in self._counted.items() if at >= moment}

    def _add(self, one: VersionSummary) -> None:
        self._counted[one.identity] = one.committed
        self.counts[_COMMITS] += one.parallelism
        self.counts.update(one.counts)
        self.phase_ms.update(one.phase_ms)


class StateDirectoryCollector(Collector):
    """Collects the metrics of all operators of a state directory. Thread-safe."""

    def __init__(self, directory: StateDirectory) -> None:
        """Look at the state directory: what is committed from now on counts."""
        self._directory: Final = directory
        self._lock: Final = threading.Lock()
        self._totals: dict[str, OperatorTotals] = {}
        self._begun = False

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with all operators. Raises the errors of storage."""
        with self._lock:
            operators = self._directory.operators()
            totals = [(one, self._updated(one)) for one in operators]
            self._begun = True
            yield from [_family(metric, totals) for metric in _SHOWN]

    def _updated(self, operator: WatchedOperator) -> OperatorTotals:
        folder = operator.stored.folder
        recent = operator.look().recent(HISTORY)
        if folder not in self._totals:
            self._totals[folder] = OperatorTotals()
            if not self._begun:
                self._totals[folder].skip(recent)
        self._totals[folder].add(recent)
        return self._totals[folder]


def _family(metric: Definition, totals: Iterable[tuple[WatchedOperator, OperatorTotals]]) -> Metric:
    counter = metric.kind is Kind.COUNTER
    kind = CounterMetricFamily if counter else GaugeMetricFamily
    labels = [*_LABELS, *metric.labels]
    family = kind(metric.name.removesuffix("_total"), metric.meaning, labels=labels)
    for operator, found in totals:
        stored = operator.stored
        for more, number in _samples(metric, found):
            family.add_metric([stored.query, stored.uid, *more], number)
    return family


def _samples(metric: Definition, found: OperatorTotals) -> Iterator[tuple[tuple[str, ...], float]]:
    if metric.key == _PHASE:
        for phase in Phase:
            if phase.value in found.phase_ms:
                yield (phase.value,), found.phase_ms[phase.value] / 1_000
        return
    newest: Mapping[str, int] = found.newest.counts if found.newest else {}
    numbers = found.counts if metric.kind is Kind.COUNTER else newest
    if metric.key in numbers:
        yield (), numbers[metric.key]
