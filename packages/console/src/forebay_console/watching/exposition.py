"""Metrics for Prometheus, from storage alone: the figures of versions, added up since the start.

Prometheus wants counters that only grow, and versions disappear from storage. So an operator's
counters begin at 0 when the console first looks at the state directory, and each version that is
committed later is added once, also if a listing misses it for a while. The counters of an operator
that is started later begin at 0, too: its first versions are added one scrape after it is found.
Where the query went back, the versions that it makes again count again, as in the job's own
metrics. After a restart of the console counters begin at 0 again, which Prometheus expects of a
process.

An operator that cannot be read keeps its last numbers, and the others are read; so do the
operators of a query that cannot be listed.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from forebay_console.watching.operator import HISTORY
from forebay_engine.versions.format.figures import ALL_COUNTS
from forebay_state_api.metrics import KEYED, MetricKind, Phase
from forebay_state_processor.observing.directory import seen

if TYPE_CHECKING:
    from forebay_console.watching.directory import StateDirectory
    from forebay_console.watching.operator import OperatorView
    from forebay_console.watching.summaries import VersionSummary
    from forebay_state_api.metrics import Metric as Definition
    from forebay_state_processor.observing import StoredOperator

_PHASE: Final = "phase_seconds"
_COMMITS: Final = "commits"
_SHOWN: Final = tuple(m for m in KEYED if m.key in ALL_COUNTS or m.key in (_PHASE, _COMMITS))
"""The metrics that the names of manifests hold."""
_LABELS: Final = ("query", "uid")
_LEAST_COUNTED: Final = 4 * HISTORY
"""Versions that are known to be counted, at least: more than any timeline shows."""
_EVER: Final = datetime.min.replace(tzinfo=UTC)


class CountersFromZero:
    """Counters that show 0 before they grow, for the length of a scrape.

    Prometheus sees no increase in a series that begins at another number.
    """

    def __init__(self) -> None:
        self.shown: Final[Counter[str]] = Counter()
        """Key of a counter → total; a key that was never known is missing."""
        self._held: Final[Counter[str]] = Counter()
        """Numbers for the next scrape, of counters that show 0 until then."""

    def release(self) -> None:
        """Add the numbers that were held back: a scrape has shown these counters at 0."""
        self.shown.update(self._held)
        self._held.clear()

    def add(self, numbers: Mapping[str, int]) -> None:
        """Add numbers, and hold back counters that are not shown yet."""
        for key, number in numbers.items():
            total = self.shown if key in self.shown else self._held
            total[key] += number

    def begin(self, keys: Iterable[str] = ()) -> None:
        """Show 0 for these counters, and for the ones held back, unless they are shown."""
        self.shown.update(dict.fromkeys([*keys, *self._held], 0))


class OperatorTotals:
    """The counters of one operator, and the gauges of its newest version."""

    def __init__(self) -> None:
        self._counted: dict[tuple[str, int], datetime] = {}
        """Identity of a version → when it was committed; all that were counted `_since`."""
        self._since = _EVER
        """Nothing committed earlier counts, wherever it turns up."""
        self._counts: Final = CountersFromZero()
        self._phase_ms: Final = CountersFromZero()
        self.newest: VersionSummary | None = None

    @property
    def counts(self) -> Mapping[str, int]:
        """Key of a counter → total; a key that was never known is missing."""
        return self._counts.shown

    @property
    def phase_ms(self) -> Mapping[str, int]:
        """Phase → total; a phase that never took any time is missing."""
        return self._phase_ms.shown

    def skip(self, versions: Iterable[VersionSummary]) -> None:
        """Leave versions out: they were committed before the console looked."""
        for one in versions:
            self._counts.begin(one.counts)
            self._phase_ms.begin(one.phase_ms)
            self._counted[one.identity] = one.committed
        self._forget_before(max(self._counted.values(), default=_EVER))

    def add(self, newest_first: Iterable[VersionSummary]) -> None:
        """Add the versions that were not counted yet, once a scrape: counters begin at 0."""
        versions = list(newest_first)
        self._counts.release()
        self._phase_ms.release()
        for one in versions:
            if one.identity not in self._counted and one.committed >= self._since:
                self._add(one)
        self._counts.begin([_COMMITS])
        self._phase_ms.begin()
        if len(self._counted) > 2 * _LEAST_COUNTED:
            self._forget_before(sorted(self._counted.values())[-_LEAST_COUNTED])
        self.newest = versions[0] if versions else None

    def _forget_before(self, moment: datetime) -> None:
        """Forget the counted versions that cannot be listed again."""
        self._since = moment
        self._counted = {one: at for one, at in self._counted.items() if at >= moment}

    def _add(self, one: VersionSummary) -> None:
        self._counted[one.identity] = one.committed
        self._counts.add({**one.counts, _COMMITS: one.parallelism})
        self._phase_ms.add(one.phase_ms)


class StateDirectoryCollector(Collector):
    """Collects the metrics of all operators of a state directory. Thread-safe."""

    def __init__(
        self, directory: StateDirectory, on_error: Callable[[str, Exception], object]
    ) -> None:
        """Nothing is read yet.

        :param directory: whose operators count; what is committed after the first scrape counts.
        :param on_error: called at each scrape with the folder of an operator that cannot be read,
            and with the name of a query that cannot be listed.
        """
        self._directory: Final = directory
        self._on_error: Final = on_error
        self._lock: Final = threading.Lock()
        self._totals: Final[dict[str, OperatorTotals]] = {}
        self._first: frozenset[str] | None = None
        """Folders of the operators that the first scrape found, readable or not, and names of the
        queries that it could not list."""

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with all operators. Raises the error of listing the operators.

        An operator that cannot be read has the numbers of the last time, if there were any.
        """
        with self._lock:
            looks = self._directory.looks()
            if self._first is None:
                folders = [one.folder for one in looks.operators]
                self._first = frozenset([*folders, *looks.unlisted])
            for query, error in looks.unlisted.items():
                self._on_error(query, error)
            for one, found in looks.operators.items():
                try:
                    from_now = not self._first.isdisjoint((one.folder, one.query))
                    self._update(one.folder, seen(found), from_now=from_now)
                except Exception as error:  # noqa: BLE001 - a damaged name, no rights
                    self._on_error(one.folder, error)
            totals = [
                (one, self._totals[one.folder])
                for one in looks.operators
                if one.folder in self._totals
            ]
            yield from [_family(metric, totals) for metric in _SHOWN]

    def _update(self, folder: str, view: OperatorView, *, from_now: bool) -> None:
        """Add an operator's new versions.

        With ``from_now``, ignore the versions that already exist.
        """
        recent = view.recent(HISTORY)
        if folder not in self._totals:
            self._totals[folder] = OperatorTotals()
            if from_now:
                self._totals[folder].skip(recent)
        self._totals[folder].add(recent)


def _family(metric: Definition, totals: Iterable[tuple[StoredOperator, OperatorTotals]]) -> Metric:
    counter = metric.kind is MetricKind.COUNTER
    kind = CounterMetricFamily if counter else GaugeMetricFamily
    labels = [*_LABELS, *metric.labels]
    family = kind(metric.name.removesuffix("_total"), metric.meaning, labels=labels)
    for stored, found in totals:
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
    numbers = found.counts if metric.kind is MetricKind.COUNTER else newest
    if metric.key in numbers:
        yield (), numbers[metric.key]
