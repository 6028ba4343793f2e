"""Readers of changes: a micro-batch is the difference between two positions of the feed.

An offset is a position, version and run, so that a query that went back is noticed. The driver's
reader pins the position that the stream goes on from, from the first offset on, and the end of each
micro-batch before Spark writes it down. It leaves these pins when the stream stops, so that a
stream that is started again within the lease finds both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import attrs
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from forebay_engine.versions.format.markers import list_version
from forebay_spark_runtime.arrow.spark_types import arrow_schema, fitted, spark_schema
from forebay_spark_runtime.data_source.held_positions import HeldPositions
from forebay_spark_runtime.data_source.options import ReadOptions, chosen
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.keys import KeyGroupRange
from forebay_state_processor.reading import START, ChangeFeed, Position, open_feed
from forebay_state_processor.reading.feed import DifferencePart
from forebay_state_processor.reading.version_choice import version_named

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@attrs.frozen(kw_only=True)
class Changes:
    """The changes of one state; it is pickled with the source."""

    options: ReadOptions
    schema: StructType

    @classmethod
    def of(cls, options: ReadOptions) -> Self:
        """Read the types of the newest version. Raises `ConfigurationError` if there is none."""
        feed = feed_of(options)
        newest = feed.newest()
        if newest == START:
            raise ConfigurationError(
                f"operator {options.uid!r} in {feed.source.storage.url} has no final version yet, "
                "so the types of its state are not known: start the stream when it has one"
            )
        assert options.state is not None
        with feed.between(START, newest) as difference:
            arrow = difference.schema(options.state, old=options.old)
        return cls(options=options, schema=spark_schema(arrow))


@attrs.frozen
class ChangePartition(InputPartition):
    """Some key groups of a difference."""

    start: Position
    end: Position
    part: DifferencePart


class ChangeReader(DataSourceStreamReader):
    """Reads differences; a micro-batch takes all stored versions."""

    def __init__(self, changes: Changes, schema: StructType) -> None:
        """``schema`` is what Spark expects: the schema of ``changes``, or the user's."""
        if schema != changes.schema:
            raise ConfigurationError(
                f"the rows have the schema {changes.schema.simpleString()}, and "
                f"{schema.simpleString()} was passed: leave .schema() out, and cast columns"
            )
        self.changes: Final = changes
        self._held = HeldPositions(changes.options.lease)
        self._end = START
        """The end of the newest micro-batch that was planned."""
        self._clocks: dict[Position, int | None] = {}
        """The times of the versions of the newest micro-batch."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the position that a new stream begins after, and hold it."""
        feed = feed_of(self.changes.options)
        position = self._first(feed)
        self._held.hold(feed, position)
        self._end = position
        return offset_of(position)

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override] # noqa: N802
        """Return the newest position, and hold it."""
        feed = feed_of(self.changes.options)
        self._held.hold(feed, self._end)
        self._end = feed.newest()
        self._held.hold(feed, self._end)
        return offset_of(self._end)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a micro-batch; each reads the key groups of one subtask."""
        first, last = position_of(start), position_of(end)
        if first == last:
            return []
        feed = feed_of(self.changes.options)
        if not self.changes.options.undo:
            feed.check_continues(first, last)
        for position in (first, last):
            self._held.hold(feed, position)
        groups = chosen(
            _parts(feed, first if last == START else last), self.changes.options.key_groups
        )
        self._clocks = {one: self._clock_of(feed, one) for one in (first, last)}
        older_us, newer_us = self._clocks[first], self._clocks[last]
        return [
            ChangePartition(first, last, DifferencePart(part, older_us, newer_us))
            for part in groups
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the changes of a partition."""
        if not isinstance(partition, ChangePartition):
            return
        options = self.changes.options
        assert options.state is not None
        target = arrow_schema(self.changes.schema)
        with feed_of(options).between(
            partition.start,
            partition.end,
            undo=options.undo,
            show_expired=options.show_expired,
            held_bytes=options.held_bytes,
            lease=options.lease,
            part=partition.part,
        ) as difference:
            if options.state not in difference.states:
                return
            for batch in difference.to_arrow(
                options.state, old=options.old, key_groups=partition.part.key_groups
            ):
                yield fitted(batch, target)

    def commit(self, end: dict[str, Any]) -> None:
        """Hold the start and the end of the next micro-batch, which Spark has planned."""
        self._held.keep_only(position_of(end), self._end)

    def stop(self) -> None:
        """Leave the pins to expire, for a stream that starts again."""

    def __getstate__(self) -> Mapping[str, Any]:
        """Return what tasks need: pins are the driver's."""
        held = HeldPositions(self.changes.options.lease)
        return {"changes": self.changes, "_held": held, "_end": START, "_clocks": {}}

    def _clock_of(self, feed: ChangeFeed, position: Position) -> int | None:
        if position in self._clocks:
            return self._clocks[position]
        return feed.clock_of(position)

    def _first(self, feed: ChangeFeed) -> Position:
        options = self.changes.options
        wanted = options.starting_version
        if wanted is None:
            return START
        if wanted == "latest":
            return feed.newest()
        if "@" in wanted:
            return Position.parse(wanted)
        asked = version_named(wanted)
        return Position.of(feed.source.choose(asked, provisional=options.provisional).at)


def offset_of(position: Position) -> dict[str, Any]:
    """Return a position as Spark stores it."""
    return {"version": position.version, "run": position.run}


def position_of(offset: Mapping[str, Any]) -> Position:
    """Return the position that `offset_of` encoded."""
    return Position(offset["version"], offset["run"])


def feed_of(options: ReadOptions) -> ChangeFeed:
    """Open the feed that the options name."""
    return open_feed(
        options.state_dir,
        query=options.query,
        uid=options.uid,
        provisional=options.provisional,
        conf=options.conf,
    )


def _parts(feed: ChangeFeed, position: Position) -> list[KeyGroupRange]:
    """Return the key groups of the subtasks that made a version, from its names."""
    listing = list_version(feed.source.storage, position.version).of_run(position.run)
    ranges = {made.by.range for made in listing.manifests}
    return sorted(ranges, key=lambda one: one.start)
