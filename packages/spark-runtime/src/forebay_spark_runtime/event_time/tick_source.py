"""The source of ticks: a stream whose offset is the clock.

A new offset begins a micro-batch, whose time is Spark's, not the offset. On classic Spark the
source has no partitions, so no task reads it. Under Spark Connect, where no pulse brings the time,
it has one row for each tick.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from forebay_spark_runtime.driver.tick_entries import AT, NAME

PERIOD: Final = "periodMs"
"""The option with the period."""
COLUMN: Final = "column"
"""The option with the name of the only column."""
HAS_ROWS: Final = "hasRows"
"""The option that is ``true`` if each tick has a row."""


class TickSource(DataSource):
    """Ticks, for `forebay_spark_runtime.event_time.ticks`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return NAME

    def schema(self) -> str:
        """Return the schema of the rows."""
        return f"{self.options[COLUMN]} long"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader."""
        del schema
        has_rows = self.options.get(HAS_ROWS) == "true"
        return TickReader(int(self.options[PERIOD]), has_rows=has_rows)


class TickReader(DataSourceStreamReader):
    """Has a new offset when a run begins, and whenever the clock has passed a period's end.

    So a run that processes what is available and ends has one tick, however soon after another run
    it begins. A pause makes one tick, however long it was.
    """

    def __init__(self, period_ms: int, *, has_rows: bool = False) -> None:
        self._period_ms = period_ms
        self._partitions = [InputPartition(0)] if has_rows else []
        self._at_ms: int | None = None
        """The last offset; ``None`` before the first one of this run."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return an offset before every tick."""
        return {AT: 0}

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override] # noqa: N802
        """Return the offset of the last tick."""
        now_ms = time.time_ns() // 1_000_000
        ended_ms = now_ms - now_ms % self._period_ms
        if self._at_ms is None:
            self._at_ms = now_ms
        elif ended_ms > self._at_ms or now_ms < self._at_ms:  # the clock may go back
            self._at_ms = ended_ms
        return {AT: self._at_ms}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return a partition with the row, or none."""
        del start, end
        return self._partitions

    def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
        """Return the row."""
        return iter([(partition.value,)])
