"""The table of a point state, made of columns of cells: there is no object for a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from forebay_state_api.contract.changes import PointChanges
from forebay_state_processor.reading.arrow_types import arrow
from forebay_state_processor.reading.columns import KeyColumns, expiry_times, nested_types
from forebay_state_processor.reading.stored_states import read_by_position

if TYPE_CHECKING:
    import pyarrow as pa

    from forebay_state_api.keys import KeyGroupRange
    from forebay_state_processor.reading.stored_states import StateInfo
    from forebay_state_processor.reading.version_content import VersionContent


class PointTable:
    """Makes record batches of a point state, with the times of last access where it has a TTL."""

    def __init__(self, content: VersionContent, info: StateInfo) -> None:
        """``info`` is a state of ``content``."""
        lib = arrow()
        self._content: Final = content
        self._info: Final = info
        self._until: Final = content.expired_until(info)
        self._keys: Final = KeyColumns(content.key_codec)
        self._value, self._times = nested_types(info)
        fields = [*self._keys.fields, lib.field("value", self._value.type)]
        if info.has_ttl:
            fields.append(lib.field("written", self._times.type))
            if info.expiry is not None:
                fields.append(lib.field("expires", self._times.type))
        self._schema: Final[pa.Schema] = lib.schema(fields)

    def reader(self, key_groups: KeyGroupRange | None) -> pa.RecordBatchReader:
        """Return the rows of some key groups, by default of all."""
        return arrow().RecordBatchReader.from_batches(self._schema, self._batches(key_groups))

    def _batches(self, key_groups: KeyGroupRange | None) -> Iterator[pa.RecordBatch]:
        spec = read_by_position(self._info.spec)
        for changes in self._content.exported(spec, key_groups):
            for namespace, points in changes.points.items():
                yield self._batch(namespace, points)

    def _batch(self, namespace: Any, points: PointChanges) -> pa.RecordBatch:
        values, times = points.values, None
        if self._info.has_ttl:
            points = live_points(points, self._until)
            times = [us for us, _ in points.values]
            values = [value for _, value in points.values]
        arrays = self._keys.arrays_in(namespace, points.keys, points.groups)
        arrays.append(self._value.array(values, "column 'value'"))
        if times is not None:
            arrays.append(self._times.array(times, "column 'written'"))
            if self._info.expiry is not None:
                arrays.append(expiry_times(arrays[-1], self._info.expiry))
        return arrow().RecordBatch.from_arrays(arrays, schema=self._schema)


def live_points(points: PointChanges, until: int | None) -> PointChanges:
    """Return the values with TTL that were last accessed after ``until``.

    ``None`` means all of them.
    """
    if until is None:
        return points
    live = [at for at, (us, _) in enumerate(points.values) if us > until]
    if len(live) == len(points.values):
        return points
    columns = (points.keys, points.groups, points.values)
    return PointChanges(*([column[at] for at in live] for column in columns))
