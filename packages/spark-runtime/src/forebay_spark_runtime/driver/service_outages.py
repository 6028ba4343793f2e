"""Logs, once in a run of a query, that a compaction service does nothing for an operator.

Workers learn it, each by itself, and may live for one task only. Their reports reach the driver by
an accumulator, and the first one is logged. Under Spark Connect there are no accumulators: there
each worker process logs its own first report.
"""

from __future__ import annotations

import logging
import pickle
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import attrs
from pyspark import TaskContext
from pyspark.accumulators import AccumulatorParam

from forebay_spark_runtime.driver.session import is_connect
from forebay_state_api.contract.compaction_service import ServiceOutage

_log = logging.getLogger(__name__)

_OVER_S: Final = 3600.0
"""After this time without a report an outage is over, and the next one is logged again."""
_REMEMBERED: Final = 1000


@attrs.frozen(kw_only=True)
class OperatorRun:
    """An operator in one run of a query."""

    uid: str
    query: str
    run: str
    """Spark's id of the run; without one, the id of the call of `keyed`."""
    service: str
    """The name of the compaction service."""


Reports: TypeAlias = dict[OperatorRun, ServiceOutage]


class OutageLog:
    """Logs the first report of each operator and run. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without reports."""
        self._clock: Final = clock
        self._reported_s: Final[dict[OperatorRun, float]] = {}
        self._lock: Final = threading.Lock()

    def report(self, reports: Reports) -> None:
        """Log the reports of outages that are not logged yet."""
        for who, outage in reports.items():
            if self._is_first(who):
                _log.warning(
                    "operator %r of query %s: the compaction service %r has done nothing since %s. "
                    "The last compaction: %s. This is logged once",
                    who.uid,
                    who.query,
                    who.service,
                    f"{outage.since:%Y-%m-%d %H:%M:%S} UTC",
                    outage.why,
                )

    def _is_first(self, who: OperatorRun) -> bool:
        with self._lock:
            now_s = self._clock()
            before_s = self._reported_s.pop(who, None)
            self._reported_s[who] = now_s
            if len(self._reported_s) > _REMEMBERED:
                del self._reported_s[next(iter(self._reported_s))]
            return before_s is None or now_s - before_s >= _OVER_S


_log_of_process: Final = OutageLog()


class _Logging(AccumulatorParam[Reports]):
    """Collects a task's report in a worker, and logs it on the driver."""

    def zero(self, value: Reports) -> Reports:  # noqa: ARG002 - pyspark's signature
        return {}

    def addInPlace(self, first: Reports, second: Reports) -> Reports:  # noqa: N802 - theirs
        if TaskContext.get() is None:
            _log_of_process.report(second)
        else:
            first.update(second)
        return first


_packed: Final[weakref.WeakKeyDictionary[Any, bytes]] = weakref.WeakKeyDictionary()
"""The pickled accumulator of a ``SparkContext``."""


def packed_reports(session: Any) -> bytes:
    """Return the argument of `report_outage` in the workers; empty under Spark Connect.

    It is pickled apart, because Spark sends the value of every accumulator that a task has seen.
    """
    if is_connect(session):
        return b""
    context = session.sparkContext
    if context not in _packed:
        _packed[context] = pickle.dumps(context.accumulator({}, _Logging()))
    return _packed[context]


def report_outage(packed: bytes, who: OperatorRun, outage: ServiceOutage) -> None:
    """Report an outage from a task: to the driver, or in this process's log if it cannot."""
    if packed:
        pickle.loads(packed).add({who: outage})  # noqa: S301 - it comes from the job's own driver
    else:
        _log_of_process.report({who: outage})
