"""Replace the version that a stopped query opens next by an edited copy of it.

Tables replace states; keys are removed from all states and timers; all else is copied. Everything
is checked before the first file is written, and the copy counts when all of it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_state_api.contract.backend import NO_TIME, Opening
from forebay_state_api.contract.changes import Changes, PointChanges
from forebay_state_api.engine.timers.cells import DIRECTORY, TIMERS
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.importing.part import ImportedTimer, PartWriter
from forebay_state_api.importing.spark_checkpoint import StoppedQuery
from forebay_state_api.importing.state_table import StateTable
from forebay_state_api.progress import SILENT, Progress
from forebay_state_api.reading.choosing import ReadFrom
from forebay_state_api.reading.rows import cells_of
from forebay_state_api.reading.snapshot import Snapshot, snapshot_of
from forebay_state_api.reading.stored_states import spec_of, timer_spec
from forebay_state_api.storage.opening import open_storage
from forebay_state_api.versions.commit import merged
from forebay_state_api.versions.epochs import RunVersion
from forebay_state_api.versions.finality import Shown
from forebay_state_api.versions.imported import (
    ImportedPart,
    ImportTarget,
    open_replaced,
    publish,
)
from forebay_state_api.versions.manifest import TTL_US, lineages_of
from forebay_state_api.versions.operator_state import OperatorStateContent

if TYPE_CHECKING:
    import pyarrow as pa

    from forebay_state_api.contract.backend import TableSpec
    from forebay_state_api.keys import KeyGroupRange
    from forebay_state_api.versions.manifest import Manifest

_KEYS: Final = 4_096


@attrs.frozen(kw_only=True)
class Replaced:
    """The result of `replace_version`."""

    version: int
    run: str | None
    """The key of the run that made the copy: with `version` it names the position. ``None``: it was
    a dry run."""
    rows: Mapping[str, int]
    """Replaced state → its rows."""


def replace_state(
    state_dir: str,
    *,
    query: str,
    uid: str,
    checkpoint: str,
    tables: Mapping[str, pa.Table],
    without_keys: Sequence[Any] = (),
    dry_run: bool = False,
    conf: Mapping[str, str] | None = None,
) -> Replaced:
    """Replace the version that a stopped query opens next by an edited copy of it.

    :param state_dir: the state directory: a path or a URL.
    :param query: the query's id, or the name that was passed as ``query=``.
    :param uid: the operator's uid.
    :param checkpoint: the query's ``checkpointLocation``: a path or a URL.
    :param conf: settings ``spark.forebay.*``, such as those of the storage.

    The other parameters, and the errors, are those of `replace_version`.
    """
    read = ReadFrom.of(state_dir, query=query, uid=uid, conf=conf or {})
    with open_next_version(read, checkpoint) as snapshot:
        return replace_version(snapshot, tables=tables, without_keys=without_keys, dry_run=dry_run)


def open_next_version(read: ReadFrom, checkpoint: str) -> Snapshot:
    """Pin the version that the next batch of a stopped query opens.

    Raises `ConfigurationError` if the query has no committed batch, or if no stored version was
    made by the last one.
    """
    stopped = StoppedQuery.read(open_storage(checkpoint, read.settings.storage_options()))
    if stopped.next_batch == 0:
        raise ConfigurationError(
            f"the query of {checkpoint} has committed no batch: there is no version to replace"
        )
    with open_replaced(
        read.storage,
        uid=read.uid,
        version=stopped.next_batch,
        location=None,
        batch_ms=stopped.parent_ms,
    ) as reader:
        at = RunVersion(version=reader.version, run_key=reader.run_key)
        return snapshot_of(read, Shown(at, final=True), show_expired=True)


def replace_version(
    snapshot: Snapshot,
    *,
    tables: Mapping[str, pa.Table],
    without_keys: Sequence[Any] = (),
    dry_run: bool = False,
    progress: Progress = SILENT,
) -> Replaced:
    """Publish an edited copy of the version that ``snapshot`` shows.

    :param tables: state → the rows that replace all of its rows, in the columns of
        `Snapshot.to_arrow`; a key without a row is removed from that state.
    :param without_keys: keys that are removed from every state, with their timers. Operator state
        and broadcast state are copied.
    :param dry_run: check everything, and write nothing.
    :param progress: receives the subtasks that were written.

    Raises `ConfigurationError` for rows that do not fit, before anything is written, and
    `FencedError` if the query or another import begins meanwhile. What a failure leaves behind
    belongs to no version, and the janitor deletes it.
    """
    target = ImportTarget.replacing(snapshot.source.storage, snapshot.opened.reader)
    edit = _Edit.checked(snapshot, tables, without_keys)
    rows = {name: len(table) for name, table in edit.tables.items()}
    if dry_run:
        return Replaced(version=target.version, run=None, rows=rows)
    progress.stage("writing", len(snapshot.manifests))
    parts = []
    for manifest in snapshot.manifests:
        parts.append(edit.part(manifest, target.version))
        progress.advance()
    first = snapshot.manifests[0]
    run = publish(
        snapshot.source.storage,
        target,
        parts,
        uid=snapshot.uid,
        backend=first.backend,
        now_us=max(manifest.now_us for manifest in snapshot.manifests),
    )
    return Replaced(version=target.version, run=run, rows=rows)


class _Edit:
    """The edited content of a version, part by part."""

    def __init__(
        self, snapshot: Snapshot, tables: Mapping[str, StateTable], removed: frozenset[Any]
    ) -> None:
        """``removed`` are the addresses of keys."""
        self._snapshot = snapshot
        self.tables = tables
        self._removed = removed
        manifests = snapshot.manifests
        self._lineages = lineages_of(manifests)
        # Of all subtasks: a table may bring cells of a state to one that has declared nothing.
        self._descriptions = merged([one.descriptions for one in manifests], {})
        self._generations = merged([one.generations for one in manifests], {})
        self._ttl_us = merged([one.metrics.get(TTL_US, {}) for one in manifests], {})
        self._timers = timer_spec(snapshot.manifests)

    @classmethod
    def checked(
        cls, snapshot: Snapshot, tables: Mapping[str, pa.Table], without_keys: Sequence[Any]
    ) -> _Edit:
        """Read and check all tables and keys."""
        key = snapshot.key_codec
        if key is None:
            raise ConfigurationError(
                f"version {snapshot.version} of operator {snapshot.uid!r} has no keyed state"
            )
        now_us = 0 if snapshot.now_us is None else snapshot.now_us
        read = {
            name: StateTable(
                snapshot.state(name), key, table, groups=snapshot.max_parallelism, now_us=now_us
            )
            for name, table in tables.items()
        }
        return cls(snapshot, read, frozenset(map(snapshot.address_of, without_keys)))

    def part(self, manifest: Manifest, version: int) -> ImportedPart:
        """Write one subtask's files."""
        snapshot, groups = self._snapshot, manifest.made.range
        operator_state = OperatorStateContent.loaded(manifest.operator_state)
        with PartWriter(snapshot.opened.backend, self._opening(manifest)) as writer:
            for name, lineage in self._lineages.items():
                if name not in (TIMERS, DIRECTORY):
                    self._write(writer, spec_of(lineage), groups)
            if self._timers is not None:
                assert snapshot.key_codec is not None
                writer.add_timers(snapshot.key_codec, self._kept_timers(self._timers, groups))
            part = writer.commit(version, manifest.made.subtask)
        return attrs.evolve(
            part,
            descriptions=self._descriptions,
            generations=self._generations,
            operator_state=manifest.operator_state,
            operator_files=[blob.name for blob in operator_state.files()],
            metrics={TTL_US: self._ttl_us} if self._ttl_us else {},
            times=manifest.times,
        )

    def _opening(self, manifest: Manifest) -> Opening:
        source = self._snapshot.source
        return Opening(
            storage=source.storage,
            path=f"{source.storage.url}#import",
            uid=self._snapshot.uid,
            version=0,
            range=manifest.made.range,
            parents=(),
            options=source.options_of(self._snapshot.opened.backend),
            now_us=NO_TIME,
            cache_bytes=0,
        )

    def _write(self, writer: PartWriter, spec: TableSpec, groups: KeyGroupRange) -> None:
        writer.declare(spec)
        table = self.tables.get(spec.name)
        changes = self._stored(spec, groups) if table is None else table.changes(groups)
        for one in changes:
            writer.apply(spec, self._without_removed(one, spec))

    def _stored(self, spec: TableSpec, groups: KeyGroupRange) -> Iterator[Changes]:
        with self._snapshot.opened.scanning(groups) as backend:
            yield from backend.table(spec).export(_KEYS)

    def _without_removed(self, changes: Changes, spec: TableSpec) -> Changes:
        if not self._removed:
            return changes
        stays = self._stays(spec)
        points = {name: _points(one, stays) for name, one in changes.points.items()}
        lists = {name: _by_key(one, stays) for name, one in changes.lists.items()}
        maps = {name: _by_key(one, stays) for name, one in changes.maps.items()}
        return Changes(
            points={name: one for name, one in points.items() if one.keys},
            lists={name: one for name, one in lists.items() if one},
            maps={name: one for name, one in maps.items() if one},
        )

    def _stays(self, spec: TableSpec) -> Callable[[Any], bool]:
        address = spec.key.address
        if address is None:
            return lambda key: key not in self._removed
        return lambda key: address(key) not in self._removed

    def _kept_timers(self, spec: TableSpec, groups: KeyGroupRange) -> Iterator[ImportedTimer]:
        assert spec.user_key is not None
        original = spec.user_key.original or (lambda address: address)
        with self._snapshot.opened.scanning(groups) as backend:
            for changes in backend.table(spec).export(_KEYS):
                for cell in cells_of(changes):
                    for at_us, key, packed in map(original, cell.content):
                        if self._snapshot.address_of(key) not in self._removed:
                            yield ImportedTimer(cell.group, cell.key[1], at_us, key, packed)


def _points(changes: PointChanges, stays: Callable[[Any], bool]) -> PointChanges:
    rows = zip(changes.keys, changes.groups, changes.values, strict=True)
    kept = [row for row in rows if stays(row[0])]
    return PointChanges(*([row[part] for row in kept] for part in range(3)))


def _by_key(changes: Mapping[Any, Any], stays: Callable[[Any], bool]) -> dict[Any, Any]:
    return {key: change for key, change in changes.items() if stays(key)}
