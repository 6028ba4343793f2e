"""The data source ``forebay``, which Spark finds by the name of this module.

Spark imports every top-level module ``pyspark_*`` when a session first uses a Python data source,
and an error here would break all of them. So this module imports pyspark and nothing else; the
rest is imported when the source is used. pyspark 3.5 has no Python data sources, and there the
module is empty.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

try:
    from pyspark.sql.datasource import DataSource
except ImportError:
    pass
else:
    if TYPE_CHECKING:
        from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
        from pyspark.sql.types import StructType

    class DefaultSource(DataSource):
        """Committed state, read with ``spark.read`` and followed with ``spark.readStream``."""

        def __init__(self, options: Any) -> None:
            """``options`` come from ``.option(...)``, and from ``load(path)`` as ``path``."""
            super().__init__(options)
            self._opened: Any = None

        @classmethod
        def name(cls) -> str:
            """Return the name for ``format(...)``."""
            return "forebay"

        def schema(self) -> StructType:
            """Choose and pin the version that is read; return the schema of its rows."""
            found: StructType = self._source().schema
            return found

        def reader(self, schema: StructType) -> DataSourceReader:
            """Return the reader of one version."""
            found: DataSourceReader = self._source().reader(schema)
            return found

        def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
            """Return the reader of changes."""
            found: DataSourceStreamReader = self._source().stream_reader(schema)
            return found

        def _source(self) -> Any:
            """Open the state once; Spark sends this object on with what was found."""
            if self._opened is None:
                from forebay_spark_runtime.data_source import opened

                self._opened = opened(dict(self.options))
            return self._opened
