"""Reports the tasks' counts to the driver, by an accumulator or by files under Spark Connect.

The driver, where logging is configured, also logs the counts that come by an accumulator.
"""

from __future__ import annotations

import json
import logging
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs

from forebay_engine.calls.wait_metrics import wait_figures
from forebay_engine.versions.format.layout import escaped
from forebay_spark_runtime.driver.session import is_connect
from forebay_spark_runtime.driver.wait_figures import add_source
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.metrics import total
from forebay_state_api.metrics.calls import CallMetrics
from forebay_state_api.storage import open_storage
from forebay_state_api.storage.urls import located

_log = logging.getLogger(__name__)

KEPT_BATCHES: Final = 100
"""The number of a query's newest micro-batches that are kept."""

KEPT_QUERIES: Final = 100
"""The number of queries that an accumulator keeps, by their latest reports. A bounded DataFrame
counts as a query."""

_Tasks: TypeAlias = dict[tuple[str, int], dict[str, dict[str, Any]]]
"""(query, batch) → operator and partition → counts."""


@attrs.frozen(kw_only=True)
class TaskReport:
    """The counts of one task."""

    name: str
    query: str
    batch_id: int
    partition: str
    counts: dict[str, Any]

    def as_tasks(self) -> _Tasks:
        """Return the report in the form of the accumulator."""
        return {(self.query, self.batch_id): {f"{self.name}/{self.partition}": self.counts}}


@attrs.frozen(kw_only=True)
class BatchReport:
    """The counts of one micro-batch, the totals of its tasks."""

    query: str
    batch_id: int
    tasks: int
    counts: CallMetrics

    @property
    def p50_s(self) -> float:
        """Seconds that half of the tries did not exceed."""
        return self.counts.latency.quantile(0.5)

    @property
    def p99_s(self) -> float:
        """Seconds that 99 % of the tries did not exceed."""
        return self.counts.latency.quantile(0.99)


class WaitMetrics:
    """Collects the counts of ordered waits per micro-batch; pass it to them as ``metrics=``.

    It keeps the newest hundred micro-batches of each query. On classic Spark nothing else is
    needed: the counts come with the tasks' results.
    """

    def __init__(self, directory: str | Path | None = None) -> None:
        """Make an empty collection.

        :param directory: for Spark Connect, a path or URL that the workers can write and this
            process can read. Each task leaves one small file there; deleting them is up to you.
            Not needed on classic Spark.
        """
        self.directory = None if directory is None else located(str(directory))
        self._accumulator: Any = None

    def batches(self) -> list[BatchReport]:
        """Return the reports of the kept micro-batches: query by query, each oldest first."""
        tasks: _Tasks = {}
        if self.directory is not None:
            tasks = _read(self.directory)
        elif self._accumulator is not None:
            tasks = self._accumulator.value
        return [
            _report(query, batch_id, found.values())
            for (query, batch_id), found in sorted(tasks.items())
        ]

    def sink(self, session: Any, name: str) -> Any:
        """Return the object that takes the reports in the workers.

        Raises `ConfigurationError` under Spark Connect without a directory. ``name`` is the
        operator's, for the message.
        """
        if self.directory is not None:
            return _Files(self.directory)
        if is_connect(session):
            raise ConfigurationError(
                f"{name}: under Spark Connect pass WaitMetrics(directory=...): there are no "
                "accumulators"
            )
        if self._accumulator is None:
            self._accumulator = _accumulator(session.sparkContext)
        return _Accumulated(self._accumulator)


_logs: Final[weakref.WeakKeyDictionary[Any, Any]] = weakref.WeakKeyDictionary()
"""The accumulator of the waits without `WaitMetrics`, by ``SparkContext``."""


def log_sink(session: Any) -> Any:
    """Return a sink for waits without `WaitMetrics`, which logs their counts.

    Returns ``None`` under Spark Connect.
    """
    if is_connect(session):
        return None
    context = session.sparkContext
    if context not in _logs:
        _logs[context] = _accumulator(context)
    return _Accumulated(_logs[context])


def _accumulator(context: Any) -> Any:
    """Return a new accumulator, in which Spark's metrics system finds the counts too."""
    accumulator = context.accumulator({}, _merging(add_newest))
    add_source(context, lambda query, batch: figures_by_name(accumulator.value, query, batch))
    return accumulator


def figures_by_name(tasks: _Tasks, query: str, batch_id: int) -> dict[str, dict[str, float]]:
    """Return operator → figures of one micro-batch, of all its tasks together."""
    by_name: dict[str, list[CallMetrics]] = defaultdict(list)
    for task, data in [*tasks.get((query, batch_id), {}).items()]:
        by_name[task.rpartition("/")[0]].append(CallMetrics.of_data(data))
    return {name: wait_figures(total(CallMetrics, found)) for name, found in by_name.items()}


def _report(query: str, batch_id: int, found: Any) -> BatchReport:
    counts = total(CallMetrics, map(CallMetrics.of_data, found))
    return BatchReport(query=query, batch_id=batch_id, tasks=len(found), counts=counts)


def add_all(known: _Tasks, reported: _Tasks) -> None:
    """Add reports; a task that is run again replaces its earlier report."""
    for batch, tasks in reported.items():
        known.setdefault(batch, {}).update(tasks)


def add_newest(known: _Tasks, reported: _Tasks) -> None:
    """Add reports, and forget the oldest batches of their queries.

    Batches of other queries are kept, even if their ids are smaller.
    """
    new = [batch for batch in reported if batch not in known]
    add_all(known, reported)
    for query, _ in new:
        _forget_old(known, query)


def _forget_old(tasks: _Tasks, query: str) -> None:
    batches = sorted(batch_id for one, batch_id in tasks if one == query)
    for batch_id in batches[:-KEPT_BATCHES]:
        del tasks[query, batch_id]
    latest = {one: position for position, (one, _) in enumerate(tasks)}
    if len(latest) > KEPT_QUERIES:
        first = min(latest, key=latest.__getitem__)
        for batch in [batch for batch in tasks if batch[0] == first]:
            del tasks[batch]


def log(tasks: _Tasks) -> None:
    """Log the counts of each task in one line."""
    for (query, batch_id), found in tasks.items():
        for task, data in found.items():
            name, _, partition = task.rpartition("/")
            _log.info(
                "operator %s of query %s, batch %d, partition %s: %s",
                name,
                query,
                batch_id,
                partition,
                CallMetrics.of_data(data),
            )


def _merging(add: Callable[[_Tasks, _Tasks], None]) -> Any:
    """Return an accumulator parameter; ``add`` adds reports to the driver's."""
    from pyspark import TaskContext
    from pyspark.accumulators import AccumulatorParam

    class Merging(AccumulatorParam[_Tasks]):
        """Collects the task's report in a worker; logs and adds it in the driver."""

        def zero(self, value: _Tasks) -> _Tasks:  # noqa: ARG002 - pyspark's signature
            return {}

        def addInPlace(self, first: _Tasks, second: _Tasks) -> _Tasks:  # noqa: N802 - theirs
            if TaskContext.get() is not None:
                add_all(first, second)
            else:
                log(second)
                add(first, second)
            return first

    return Merging()


@attrs.frozen
class _Accumulated:
    accumulator: Any

    def report(self, task: TaskReport) -> None:
        """Send the counts to the driver with the task's result."""
        self.accumulator.add(task.as_tasks())


@attrs.frozen
class _Files:
    directory: str

    def report(self, task: TaskReport) -> None:
        """Write a file. An error is logged: a missing report does not fail the batch."""
        name = escaped(f"{task.name}-{task.partition}", "a metrics file")
        try:
            open_storage(self.directory).put(
                f"{escaped(task.query, 'the query')}/{task.batch_id:012d}/{name}.json",
                json.dumps(attrs.asdict(task)).encode(),
            )
        except Exception:  # noqa: BLE001 - whatever a storage raises
            _log.warning("the metrics of %s were not written", task.name, exc_info=True)


def _read(directory: str) -> _Tasks:
    storage = open_storage(directory)
    found: _Tasks = {}
    for name in _newest(info.name for info in storage.list("")):
        add_all(found, TaskReport(**json.loads(storage.get(name))).as_tasks())
    return found


def _newest(names: Iterable[str]) -> Iterator[str]:
    """Return the files ``query/batch/task`` of each query's newest batches."""
    queries: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in names:
        query, batch, _ = name.rsplit("/", 2)
        queries[query][batch].append(name)
    for batches in queries.values():
        for batch in sorted(batches)[-KEPT_BATCHES:]:
            yield from batches[batch]
