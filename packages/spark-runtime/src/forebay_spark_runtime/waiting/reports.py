"""How the driver learns what the tasks counted: an accumulator, or files under Spark Connect."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs

from forebay_spark_runtime.session import is_connect
from forebay_spark_runtime.waiting.counts import Counts
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.storage import located, open_storage
from forebay_state_api.versions.layout import escaped

_log = logging.getLogger(__name__)

KEPT_BATCHES: Final = 100
"""Micro-batches that an accumulator remembers, the newest."""

_Tasks: TypeAlias = dict[tuple[str, int], dict[str, dict[str, Any]]]
"""(query, batch) → operator and partition → counts."""


@attrs.frozen(kw_only=True)
class TaskReport:
    """What one task counted."""

    name: str
    query: str
    batch_id: int
    partition: str
    counts: dict[str, Any]

    def as_tasks(self) -> _Tasks:
        """In the form that is accumulated."""
        return {(self.query, self.batch_id): {f"{self.name}/{self.partition}": self.counts}}


@attrs.frozen(kw_only=True)
class BatchReport:
    """What the tasks of one micro-batch counted together."""

    query: str
    batch_id: int
    tasks: int
    counts: Counts

    @property
    def p50_s(self) -> float:
        """Seconds that half of the tries did not exceed."""
        return self.counts.latency.quantile(0.5)

    @property
    def p99_s(self) -> float:
        """Seconds that 99 % of the tries did not exceed."""
        return self.counts.latency.quantile(0.99)


class WaitMetrics:
    """Collects what ordered waits counted, per micro-batch; pass it to them as ``metrics=``.

    On classic Spark nothing else is needed: the counts come with the tasks' results. Under Spark
    Connect name a ``directory`` (a path or URL) that the workers can write and this process can
    read: each task leaves one small file there, and they are yours to delete.
    """

    def __init__(self, directory: str | Path | None = None) -> None:
        self.directory = None if directory is None else located(str(directory))
        self._accumulator: Any = None

    def batches(self) -> list[BatchReport]:
        """The micro-batches that are known, oldest first, of each query."""
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
        """What a worker gives its report to; travels there."""
        if self.directory is not None:
            return _Files(self.directory)
        if is_connect(session):
            raise ConfigurationError(
                f"{name}: under Spark Connect pass WaitMetrics(directory=...): there are no "
                "accumulators"
            )
        if self._accumulator is None:
            self._accumulator = session.sparkContext.accumulator({}, _merging())
        return _Accumulated(self._accumulator)


def _report(query: str, batch_id: int, found: Any) -> BatchReport:
    counts = Counts()
    for data in found:
        counts.add(Counts.of_data(data))
    return BatchReport(query=query, batch_id=batch_id, tasks=len(found), counts=counts)


def _merging() -> Any:
    from pyspark.accumulators import AccumulatorParam

    class Merging(AccumulatorParam):  # type: ignore[misc]  # pyspark is untyped here
        """Adds reports; a task that is run again replaces what it said before."""

        def zero(self, value: _Tasks) -> _Tasks:  # noqa: ARG002 - pyspark's signature
            return {}

        def addInPlace(self, first: _Tasks, second: _Tasks) -> _Tasks:  # noqa: N802 - theirs
            for batch, tasks in second.items():
                first.setdefault(batch, {}).update(tasks)
            while len(first) > KEPT_BATCHES:
                del first[min(first, key=lambda batch: batch[1])]
            return first

    return Merging()


@attrs.frozen
class _Accumulated:
    accumulator: Any

    def report(self, task: TaskReport) -> None:
        """Have the counts brought to the driver with the task's result."""
        self.accumulator.add(task.as_tasks())


@attrs.frozen
class _Files:
    directory: str

    def report(self, task: TaskReport) -> None:
        """Write a file. A report that cannot be written is no reason to fail the batch."""
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
    for info in storage.list(""):
        task = TaskReport(**json.loads(storage.get(info.name)))
        for batch, tasks in task.as_tasks().items():
            found.setdefault(batch, {}).update(tasks)
    return found
