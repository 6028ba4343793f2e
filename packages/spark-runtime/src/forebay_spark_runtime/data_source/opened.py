"""The sources of rows: one version, or the changes between versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import attrs
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader

from forebay_spark_runtime.data_source.change_reader import ChangeReader, Changes
from forebay_spark_runtime.data_source.options import ReadOptions
from forebay_spark_runtime.data_source.pinned_version import PinnedVersion
from forebay_spark_runtime.data_source.snapshot_reader import PushdownReader, SnapshotReader
from forebay_state_api.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class Opened(Protocol):
    """One version, or changes, as the options name them."""

    @property
    def schema(self) -> StructType:
        """The schema of the rows."""

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader for ``spark.read``."""

    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader for ``spark.readStream``."""


def opened(options: Mapping[str, str]) -> Opened:
    """Open the version or the changes that the options name.

    Raises a `ConfigurationError` that lists what is stored.
    """
    parsed = ReadOptions.parse(options)
    if parsed.changes:
        return OpenedChanges(Changes.of(parsed))
    return OpenedVersion(PinnedVersion.choose(parsed))


@attrs.frozen
class OpenedVersion:
    """One version, for ``spark.read``."""

    version: PinnedVersion

    @property
    def schema(self) -> StructType:
        """The schema of the rows; its first field's metadata have their version."""
        return self.version.labelled_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the version."""
        if not self.version.options.pushdown:
            return SnapshotReader(self.version, schema)
        if not hasattr(DataSourceReader, "pushFilters"):
            raise ConfigurationError("option 'pushdown' needs pyspark 4.1 or newer")
        return PushdownReader(self.version, schema)

    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        """Refuse: a version does not stream."""
        del schema
        raise ConfigurationError(
            "spark.readStream reads changes: pass option('changes', 'true') and option('state', …)"
        )


@attrs.frozen
class OpenedChanges:
    """Changes, for ``spark.readStream``."""

    changes: Changes

    @property
    def schema(self) -> StructType:
        """The schema of the rows."""
        return self.changes.schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Refuse: changes stream."""
        del schema
        raise ConfigurationError(
            "option('changes', 'true') is for spark.readStream; to read changes once, start the "
            "stream with trigger(availableNow=True)"
        )

    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of the changes."""
        if hasattr(DataSourceStreamReader, "getDefaultReadLimit"):  # pyspark 4.2 and newer
            from forebay_spark_runtime.data_source.admission import AdmittingChangeReader

            return AdmittingChangeReader(self.changes, schema)
        if self.changes.options.most_versions is not None:
            raise ConfigurationError("option 'maxVersionsPerTrigger' needs pyspark 4.2 or newer")
        return ChangeReader(self.changes, schema)
