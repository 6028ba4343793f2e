"""`PinnedVersion`: the version that all scans of one DataFrame read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Self

import attrs
import pyarrow as pa
from pyspark.sql.types import StructField, StructType

from forebay_engine.codecs.stored_codec import stored_codec
from forebay_engine.versions.choosing.finality import ShownVersion
from forebay_engine.versions.choosing.pins import renew_pin
from forebay_spark_runtime.arrow.spark_types import spark_schema
from forebay_spark_runtime.data_source.options import ReadOptions
from forebay_state_api.errors import ConfigurationError, VersionGoneError
from forebay_state_api.keys import KeyGroupRange, canonical_key, key_group_of
from forebay_state_processor.reading import ALL, Position, Snapshot
from forebay_state_processor.reading.history_positions import is_stored
from forebay_state_processor.reading.json_keys import keys_from_json, namespace_from_json
from forebay_state_processor.reading.snapshot import snapshot_of
from forebay_state_processor.reading.version_choice import OperatorSource
from forebay_state_processor.reading.version_content import VersionPart


@attrs.frozen(kw_only=True)
class PinnedVersion:
    """A version that was chosen once, and pinned; it is pickled with the source.

    The pin is never closed, since Spark does not report when a DataFrame is no longer used: each
    scan and each task renews it, and it expires.
    """

    options: ReadOptions
    position: Position
    final: bool
    pin_id: str
    max_parallelism: int
    parts: tuple[KeyGroupRange, ...]
    """The key groups of the subtasks that made the version."""
    bytes_per_group: float
    """The stored bytes of a key group, on average."""
    now_us: int | None
    key: Mapping[str, Any]
    """The description of keys."""
    keys: tuple[Any, ...] | None
    """The keys to look up."""
    namespace: Any
    schema: StructType

    @classmethod
    def choose(cls, options: ReadOptions) -> Self:
        """Choose and pin a version. Raises as `open_state` does, and for keys that do not fit."""
        source = _source(options)
        snapshot = source.opened(
            partial(snapshot_of, source, lease=options.lease, show_expired=options.show_expired),
            options.version,
            run=options.run,
            provisional=options.provisional,
        )
        try:
            return cls._of(snapshot, options)
        except BaseException:
            snapshot.close()
            raise

    @classmethod
    def _of(cls, snapshot: Snapshot, options: ReadOptions) -> Self:
        if snapshot.key_codec is None:
            raise ConfigurationError(
                f"version {snapshot.version} of operator {snapshot.uid!r} has no keyed state"
            )
        keys = None
        if options.keys is not None:
            keys = tuple(keys_from_json(options.keys, snapshot.key_codec.description))
            for key in keys:
                snapshot.key_group_of(key)
        namespace = ALL if options.namespace is None else namespace_from_json(options.namespace)
        opened = snapshot.opened
        return cls(
            options=options,
            position=Position(snapshot.version, snapshot.run),
            final=snapshot.final,
            pin_id=opened.reader.pin.id,
            max_parallelism=snapshot.max_parallelism,
            parts=tuple(opened.parts(snapshot.key_groups)),
            bytes_per_group=snapshot.bytes_per_group,
            now_us=snapshot.now_us,
            key=snapshot.key_codec.description,
            keys=keys,
            namespace=namespace,
            schema=_checked(spark_schema(rows(snapshot, options).schema)),
        )

    def labelled_schema(self) -> StructType:
        """Return the schema, with the position in the metadata of its first field."""
        first, *others = self.schema.fields
        at = {"version": self.position.version, "run": self.position.run, "final": self.final}
        label = {"forebay": at}
        return StructType([StructField(first.name, first.dataType, first.nullable, label), *others])

    def has_schema(self, schema: StructType) -> bool:
        """Return whether a schema is that of the rows, apart from its fields' metadata."""
        return self.schema == StructType(
            [StructField(one.name, one.dataType, one.nullable) for one in schema]
        )

    def groups_of(self, keys: Sequence[Any]) -> list[tuple[int, Any]]:
        """Return each key with its key group; raises `TypeError` or `ValueError` for a misfit."""
        codec = stored_codec(self.key, what="the key")
        admitted = [canonical_key(codec.admit(key)) for key in keys]
        return [(key_group_of(key, self.max_parallelism), key) for key in admitted]

    def hold(self) -> None:
        """Renew the pin. Raises `VersionGoneError` if it has expired and the version is deleted."""
        source = _source(self.options)
        if renew_pin(source.storage, self.pin_id, now=datetime.now(UTC)):
            return
        if not is_stored(source.storage, self.position):
            raise self._gone_error(source)

    def open(self, groups: KeyGroupRange) -> Snapshot:
        """Open the version's part of some key groups, with a pin of its own."""
        source = _source(self.options)
        try:
            return snapshot_of(
                source,
                ShownVersion(self.position.at, self.final),
                lease=self.options.lease,
                show_expired=self.options.show_expired,
                part=VersionPart(groups, self.now_us),
            )
        except VersionGoneError as error:
            raise self._gone_error(source) from error

    def _gone_error(self, source: OperatorSource) -> VersionGoneError:
        return source.version_gone_error(
            self.position.at,
            f"load() chose it, and it was not read for {self.options.lease}, so that its pin "
            "expired. Call load() again, or keep it for longer with option('lease', '8h')",
        )


def rows(
    snapshot: Snapshot,
    options: ReadOptions,
    *,
    keys: Sequence[Any] | None = None,
    namespace: Any = ALL,
) -> pa.RecordBatchReader:
    """Return the rows that the options select from a snapshot, or from a part."""
    if options.timers:
        return snapshot.timer_table()
    if options.state is not None:
        return snapshot.to_arrow(options.state, flat=options.flat, keys=keys, namespace=namespace)
    return snapshot.table(keys=keys, namespace=namespace)


def _source(options: ReadOptions) -> OperatorSource:
    return OperatorSource.of(
        options.state_dir, query=options.query, uid=options.uid, conf=options.conf
    )


def _checked(schema: StructType) -> StructType:
    """Raise `ConfigurationError` for columns whose names Spark does not distinguish."""
    seen: dict[str, str] = {}
    for name in schema.names:
        other = seen.setdefault(name.lower(), name)
        if other is not name:
            raise ConfigurationError(
                f"the table has two columns whose names differ only in case, {other!r} and "
                f"{name!r}: read one state with option('state', …)"
            )
    return schema
