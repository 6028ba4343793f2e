"""The query listener, which refuses ``asyncProgressTrackingEnabled`` and passes on checkpoints.

With that option, batch ids come back with other data after a failure. It is an option of the
writer, which neither a DataFrame nor a task can see. The class of the running query shows it, and
Spark calls listeners with the query before its first batch. Our listener marks the query's own
session, whose settings reach the tasks, and the operator's tasks refuse the mark. Under Spark
Connect the client cannot see the query's class, so the option cannot be refused there.

In the same way the listener stores the contents of the query's checkpoint in the session, and marks
queries that have two operators of one uid, and queries whose trigger ends them; only operators that
leave rows to the next micro-batch refuse the latter mark. Queries with a keyed operator run without
adaptive execution, as Spark's own queries with state do. The listener also logs the stored state of
operators that the query no longer has, logs the figures in progress events, passes them to Spark's
metrics system, marks the versions of committed batches as final, and logs the error of Forebay that
stopped a query.
"""

# ruff: noqa: SLF001 - pyspark has no public way to what its JVM knows

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import weakref
from typing import TYPE_CHECKING, Any, ClassVar, Final

from forebay_spark_runtime.driver.checkpoints import CHECKPOINT, checkpoint_of, of_this_batch
from forebay_spark_runtime.driver.failure import error_in
from forebay_spark_runtime.driver.final_versions import final_versions
from forebay_spark_runtime.driver.operator_batch import operators_of
from forebay_spark_runtime.driver.operator_names import SAME_UID, operators_in, uid_of_two
from forebay_spark_runtime.driver.session import MicroBatch, is_connect
from forebay_spark_runtime.driver.spark_metrics import SparkMetrics, spark_metrics
from forebay_spark_runtime.driver.stored_operators import log_kept
from forebay_spark_runtime.driver.tick_entries import follow_plan
from forebay_spark_runtime.driver.wait_figures import wait_figures_of
from forebay_state_api.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from forebay_engine.versions import Checkpoint

_log = logging.getLogger(__name__)

MARK: Final = "spark.sql.forebay.asyncProgressTracking"
"""Set to ``true`` in the session of a query that tracks its progress asynchronously."""

ENDS: Final = "spark.sql.forebay.endsByItself"
"""Set to ``true`` in the session of a query that processes the available data and ends."""

ADAPTIVE: Final = "spark.sql.adaptive.streaming.stateless.enabled"
"""Spark's setting (4.1 and newer) for queries without an operator of its own that has state."""

REAL_TIME: Final = "spark.sql.forebay.realTime"
"""Set to ``true`` in the session of a query in real-time mode."""

_REAL_TIME_TRIGGER: Final = "RealTimeTrigger"
_CLASS: Final = "AsyncProgressTracking"
_ENDING_TRIGGERS: Final = ("AvailableNowTrigger", "OneTimeTrigger")
_watched: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def async_progress_error(uid: str) -> ConfigurationError:
    """Return the error for a query marked with `MARK`."""
    return ConfigurationError(
        f"operator {uid!r}: the query was started with asyncProgressTrackingEnabled=true. After a "
        "failure its batch ids come back with other data, to which no version of the state "
        "belongs. Start it without that option"
    )


def real_time_error(uid: str) -> ConfigurationError:
    """Return the error for a query marked with `REAL_TIME`."""
    return ConfigurationError(
        f"operator {uid!r}: the query runs in real-time mode, in which a micro-batch lasts for "
        "minutes and its rows go on before its state is committed. Start it with "
        "trigger(processingTime=...) or trigger(availableNow=True)"
    )


def watch(session: Any) -> None:
    """Add the listener to ``session``, once. Does nothing under Spark Connect."""
    if is_connect(session) or session in _watched:
        return
    from pyspark.java_gateway import ensure_callback_server_started

    context = session.sparkContext
    ensure_callback_server_started(context._gateway)
    queries = session._jsparkSession.streams()
    streaming = context._jvm.org.apache.spark.sql.streaming
    listener = streaming.PythonStreamingQueryListenerWrapper(
        _Listener(session._jsparkSession, spark_metrics(context), context)
    )
    queries.addListener(listener)
    _watched.add(session)
    atexit.register(_stop_watching, context, queries, listener)


def ask_this_batch(session: Any, batch: MicroBatch, uid: str) -> tuple[Checkpoint, int] | None:
    """In ``foreachBatch``: return the query's checkpoint and the batch's time in ms, if known.

    Raises `ConfigurationError` if the query tracks its progress asynchronously.
    """
    if is_connect(session) or batch.spark_query is None:
        return None
    query_id = session._jvm.java.util.UUID.fromString(batch.spark_query)
    execution = _running(session._jsparkSession, query_id)
    if execution is None:
        return None
    if _is_asynchronous(execution):
        raise async_progress_error(uid)
    return of_this_batch(execution, batch, uid)


def is_bounded(df: DataFrame, batch: MicroBatch) -> bool:
    """Return whether ``df`` is bounded, and no micro-batch that a stream may repeat.

    A thread that a ``foreachBatch`` function starts does not know the batch. So while a stream runs
    in the application, a DataFrame with a ``batch_id=`` does not count as bounded.
    """
    if df.isStreaming or batch.run_id is not None:
        return False
    if batch.batch_id is None or is_connect(df.sparkSession):
        return True
    shared: Any = df.sparkSession._jsparkSession.sharedState()
    return bool(shared.activeStreamingQueries().isEmpty())


def _stop_watching(context: Any, queries: Any, listener: Any) -> None:
    # A stopped context does not call the listener, and its JVM may be gone. A running one would
    # complain that this process is gone.
    if context._jsc is None:
        return
    with contextlib.suppress(Exception):  # py4j raises many kinds when its peer is lost
        queries.removeListener(listener)


def _running(java_session: Any, query_id: Any) -> Any:
    """Return the execution of a query that runs in this application, in any session."""
    return java_session.sharedState().activeStreamingQueries().get(query_id)


def _is_asynchronous(execution: Any) -> bool:
    return _CLASS in execution.getClass().getName()


def _ends_by_itself(execution: Any) -> bool:
    trigger = execution.trigger().getClass().getName()
    return any(name in trigger for name in _ENDING_TRIGGERS)


def _leave_adaptive_execution(java_session: Any) -> None:
    """Turn adaptive execution off in a query's own session, unless the user has set it."""
    given = java_session.sessionState().conf().contains(ADAPTIVE)
    if not given and java_session.conf().isModifiable(ADAPTIVE):
        java_session.conf().set(ADAPTIVE, "false")


class _Listener:
    """The listener, which the JVM calls."""

    def __init__(self, java_session: Any, metrics: SparkMetrics, context: Any) -> None:
        self._java_session = java_session
        self._metrics = metrics
        self._context = context

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Java's name
        """Mark the query's session; its first batch waits until this returns."""
        execution = _running(self._java_session, event.id())
        if execution is None:
            return
        follow_plan(execution, self._context._jvm)
        conf = execution.sparkSessionForStream().conf()
        if _is_asynchronous(execution):
            conf.set(MARK, "true")
            _log.warning("query %s was started with asyncProgressTrackingEnabled", event.id())
        if _REAL_TIME_TRIGGER in execution.trigger().getClass().getName():
            conf.set(REAL_TIME, "true")
        if _ends_by_itself(execution):
            conf.set(ENDS, "true")
        if (checkpoint := checkpoint_of(execution)) is not None:
            conf.set(CHECKPOINT, checkpoint.text())
        is_new = checkpoint is not None and not checkpoint.times_ms
        plan = execution.analyzedPlan().toString()
        if (uid := uid_of_two(plan)) is not None:
            conf.set(SAME_UID, uid)
        if operators_in(plan):
            _leave_adaptive_execution(execution.sparkSessionForStream())
        log_kept(str(event.id()), plan, is_new=is_new)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Java's name
        """Use what a micro-batch reports; what goes wrong is logged, and fails nothing."""
        try:
            progress = json.loads(event.progress().json())
            final_versions.committed(progress, self._context.applicationId)
            for batch in operators_of(progress):
                _log.info("%s", batch)
                self._metrics.show(batch)
            query = progress["name"] or progress["id"]
            waits = wait_figures_of(self._context, progress["id"], progress["batchId"])
            for name, figures in waits:
                self._metrics.show_wait(query, name, figures)
        except Exception:  # noqa: BLE001 - py4j raises many kinds, when the context stops too
            _log.debug("a progress event was not read", exc_info=True)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Java's name
        """Not needed."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Java's name
        """Log what stopped the query, without Spark's lines."""
        if event.exception().isDefined() and (error := error_in(event.exception().get())):
            _log.error("query %s failed: %s: %s", event.id(), type(error).__name__, error)

    class Java:
        """The declaration that py4j reads."""

        implements: ClassVar = ["org.apache.spark.sql.streaming.PythonStreamingQueryListener"]
