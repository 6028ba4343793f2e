"""Readers of one version: partitions are ranges of key groups, which filters narrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
from pyspark.sql.datasource import DataSourceReader, InputPartition

from forebay_spark_runtime.arrow.spark_types import arrow_schema, fitted
from forebay_spark_runtime.data_source.key_filters import keys_in
from forebay_spark_runtime.data_source.options import chosen, merged
from forebay_spark_runtime.data_source.pinned_version import PinnedVersion, rows
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.keys import KeyGroupRange

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

TASK_BYTES: Final = 4 << 20
"""The stored bytes below which neighbouring subtasks' key groups are read by one task: to start
another one takes as long as to read so much."""


@attrs.frozen
class StatePartition(InputPartition):
    """Some key groups of a version, or some keys in them."""

    groups: KeyGroupRange
    keys: tuple[Any, ...] | None = None


class SnapshotReader(DataSourceReader):
    """Reads one version."""

    def __init__(self, version: PinnedVersion, schema: StructType) -> None:
        """``schema`` is what Spark expects: the schema of ``version``, or the user's."""
        if not version.has_schema(schema):
            raise ConfigurationError(
                f"the rows have the schema {version.schema.simpleString()}, and "
                f"{schema.simpleString()} was passed: leave .schema() out, and cast columns"
            )
        self._version = version
        self._wanted = version.options.key_groups

    def partitions(self) -> Sequence[InputPartition]:
        """Return what each task reads: the key groups of some subtasks, or the keys of one."""
        version = self._version
        version.hold()
        if version.keys is not None:
            placed = version.groups_of(version.keys)
            return [
                StatePartition(part, found)
                for part in version.parts
                if (found := tuple(key for group, key in placed if part.start <= group <= part.end))
            ]
        parts = chosen(version.parts, self._wanted)
        return [StatePartition(part) for part in joined(parts, version.bytes_per_group)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition."""
        if not isinstance(partition, StatePartition):  # Spark's, in place of none at all
            return
        version = self._version
        version.hold()
        target = arrow_schema(version.schema)
        groups, keys = partition.groups, partition.keys
        with version.open(groups) as snapshot:
            found = rows(snapshot, version.options, keys=keys, namespace=version.namespace)
            for batch in found:
                yield fitted(batch, target)


def joined(parts: Iterable[KeyGroupRange], bytes_per_group: float) -> Iterator[KeyGroupRange]:
    """Join neighbours, as many as have `TASK_BYTES` stored on average; none is split."""
    most = TASK_BYTES / bytes_per_group
    last: KeyGroupRange | None = None
    for part in parts:
        if last is not None and last.end + 1 == part.start and len(last) + len(part) <= most:
            last = KeyGroupRange(last.start, part.end)
            continue
        if last is not None:
            yield last
        last = part
    if last is not None:
        yield last


class PushdownReader(SnapshotReader):
    """Reads only the key groups that filters on the key leave; Spark applies all filters again.

    Spark refuses a reader with this method unless filter push-down is switched on.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Narrow the key groups; return all filters."""
        version = self._version
        keys = keys_in(filters, version.key)
        if keys is not None:
            try:
                placed = version.groups_of(keys)
            except (TypeError, ValueError):  # no key of this type: Spark finds no row
                return filters
            groups = merged([KeyGroupRange(group, group) for group, _ in placed])
            self._wanted = tuple(chosen(groups, self._wanted))
        return filters
