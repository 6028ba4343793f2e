"""Figures of keyed operators, as classes: from progress events, on classic Spark and Connect.

``operators_of(query.lastProgress)`` returns the metrics of one event; a `MetricsListener` calls a
function for each micro-batch::

    spark.streams.addListener(MetricsListener(lambda batch: print(batch.uid, batch.figures)))
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from forebay_spark_runtime.driver.operator_batch import OperatorBatch, operators_of

__all__ = ["MetricsListener", "OperatorBatch", "operators_of"]

_log = logging.getLogger(__name__)


class MetricsListener(StreamingQueryListener):
    """Calls a function with the `OperatorBatch` of each keyed operator and micro-batch.

    An exception of the function is logged once, and does not reach the query.
    """

    def __init__(self, on_batch: Callable[[OperatorBatch], object]) -> None:
        super().__init__()
        self._on_batch = on_batch
        self._failed = False

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Not needed."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Call the function with the figures of each operator in the event."""
        for batch in operators_of(event.progress):
            try:
                self._on_batch(batch)
            except Exception:  # noqa: BLE001 - this runs any user code
                if not self._failed:
                    _log.warning("a metrics listener failed", exc_info=True)
                self._failed = True

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Not needed."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Not needed."""
