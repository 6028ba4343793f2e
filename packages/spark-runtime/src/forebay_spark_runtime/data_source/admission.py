"""Readers of changes with admission control, which pyspark has from 4.2."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from forebay_spark_runtime.data_source.change_reader import (
    ChangeReader,
    feed_of,
    offset_of,
    position_of,
)
from forebay_state_processor.reading import Position


class AdmittingChangeReader(ChangeReader, SupportsTriggerAvailableNow):
    """Reads at most ``maxVersionsPerTrigger`` versions in a micro-batch, from pyspark 4.2."""

    _last: Position | None = None
    """The newest position when a run began that reads what is available and ends."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit; Spark has no name for versions, so they are counted as files."""
        most = self.changes.options.most_versions
        return ReadAllAvailable() if most is None else ReadMaxFiles(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Fix the position at which this run ends."""
        self._last = feed_of(self.changes.options).newest()

    def latestOffset(  # type: ignore[override] # noqa: N802
        self, start: dict[str, Any], limit: ReadLimit
    ) -> dict[str, Any]:
        """Return the position at which a micro-batch ends, held; ``start`` if nothing is new.

        A run that ends has nothing new once it has reached its last position, even if the query
        continues.
        """
        position = position_of(start)
        if position == self._last:
            return start
        options = self.changes.options
        feed = feed_of(options)
        self._held.hold(feed, position)
        most = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        found = feed.after(position, most=most, undo=options.undo)
        if self._last is not None:
            found = [one for one in found if one.version <= self._last.version]
        self._end = found[-1] if found else position
        self._held.hold(feed, self._end)
        return offset_of(self._end)
