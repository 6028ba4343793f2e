"""Replace the version that a stopped query opens next by an edited copy of it.

Tables replace states; keys are removed from all states and timers; all else is copied. Everything
is checked before the first file is written, and the copy counts when all of it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_state_api.contract.backend import NO_TIME, Opening
from forebay_state_api.contract.changes import Changes, PointChanges
from forebay_state_api.engine.timers.cells import BY_KEY, DIRECTORY, TIMERS
from forebay_state_api.engine.timers.watermark import TimerClocks
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.importing.checked_tables import CheckedTables
from forebay_state_api.importing.part import ImportedTimer, PartWriter
from forebay_state_api.importing.spark_checkpoint import StoppedQuery
from forebay_state_api.importing.tables import Tables
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
    from forebay_state_api.contract.backend import TableSpec
    from forebay_state_api.contract.object_storage import ObjectStorage
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
    timers: int | None
    """The timers that replaced all others; ``None``: they stayed."""


def replace_state(
    state_dir: str,
    *,
    query: str,
    uid: str,
    checkpoint: str,
    tables: Mapping[str, Any] | Any,
    timers: Any = None,
    without_keys: Sequence[Any] = (),
    dry_run: bool = False,
    conf: Mapping[str, str] | None = None,
) -> Replaced:
    """Replace the version that a stopped query opens next by an edited copy of it.

    :param state_dir: the state directory: a path or a URL.
    :param query: the query's id, or the name that was passed as ``query=``.
    :param uid: the operator's uid.
    :param checkpoint: the query's ``checkpointLocation``: a path or a URL.
    :param tables: state → the rows that replace all of its rows, in the columns of
        `Snapshot.to_arrow`; or one table in those of `Snapshot.table`, which replaces the states
        that it has, and where null is no content. A table is a `pyarrow.Table`, a
        `pyarrow.dataset.Dataset`, which is read in batches, or an object with the Arrow C stream.
        A key without a row is removed from that state.
    :param timers: a table of timers that replaces all timers, as `Snapshot.timer_table` has it.
    :param conf: settings ``spark.forebay.*``, such as those of the storage.

    The other parameters, and the errors, are those of `replace_version`.
    """
    read = ReadFrom.of(state_dir, query=query, uid=uid, conf=conf or {})
    with open_next_version(read, checkpoint) as snapshot:
        given = Tables.of(tables, timers)
        return replace_version(snapshot, given, without_keys=without_keys, dry_run=dry_run)


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
    tables: Tables,
    *,
    without_keys: Sequence[Any] = (),
    dry_run: bool = False,
    progress: Progress = SILENT,
) -> Replaced:
    """Publish an edited copy of the version that ``snapshot`` shows.

    :param tables: the tables, as for `replace_state`.
    :param without_keys: keys that are removed from every state, with their timers. Operator state
        and broadcast state are copied.
    :param dry_run: check everything, and write nothing.
    :param progress: receives the subtasks that were written.

    Raises `ConfigurationError` for rows that do not fit, before anything is written, and
    `FencedError` if the query or another import begins meanwhile. What a failure leaves behind
    belongs to no version, and the janitor deletes it.
    """
    storage = snapshot.source.storage
    target = ImportTarget.replacing(storage, snapshot.opened.reader)
    removed = frozenset(map(snapshot.address_of, without_keys))
    with _checked(snapshot, tables) as checked:
        edit = _Edit(snapshot, checked, removed)
        run = None if dry_run else edit.publish(storage, target, progress)
        return Replaced(
            version=target.version,
            run=run,
            rows=checked.rows,
            timers=checked.timers if checked.has_timers else None,
        )


def _checked(snapshot: Snapshot, tables: Tables) -> CheckedTables:
    key = snapshot.key_codec
    if key is None:
        raise ConfigurationError(
            f"version {snapshot.version} of operator {snapshot.uid!r} has no keyed state"
        )
    if tables.timers is not None and timer_spec(snapshot.manifests) is None:
        raise ConfigurationError(
            f"version {snapshot.version} of operator {snapshot.uid!r} has no table of timers: its "
            "function has no on_timer"
        )
    ranges = [manifest.made.range for manifest in snapshot.manifests]
    now_us = 0 if snapshot.now_us is None else snapshot.now_us
    return CheckedTables.of(tables, snapshot.states, key, ranges, now_us=now_us)


class _Edit:
    """The edited content of a version, part by part."""

    def __init__(self, snapshot: Snapshot, tables: CheckedTables, removed: frozenset[Any]) -> None:
        """``removed`` are the addresses of keys."""
        self._snapshot = snapshot
        self._tables = tables
        self._removed = removed
        manifests = snapshot.manifests
        # The lists of each key's timers follow from the timers: a job lists them again.
        left_out = {BY_KEY} if tables.has_timers else set()
        lineages = lineages_of(manifests)
        self._lineages = {name: one for name, one in lineages.items() if name not in left_out}
        # Of all subtasks: a table may bring cells of a state to one that has declared nothing.
        self._descriptions = _without(merged([one.descriptions for one in manifests], {}), left_out)
        self._generations = _without(merged([one.generations for one in manifests], {}), left_out)
        self._ttl_us = merged([one.metrics.get(TTL_US, {}) for one in manifests], {})
        self._timers = timer_spec(snapshot.manifests)

    def publish(self, storage: ObjectStorage, target: ImportTarget, progress: Progress) -> str:
        """Write all parts and make them a version; return the key of its run."""
        manifests = self._snapshot.manifests
        progress.stage("writing", len(manifests))
        parts = []
        for number, manifest in enumerate(manifests):
            parts.append(self._part(number, manifest, target.version))
            progress.advance()
        return publish(
            storage,
            target,
            parts,
            uid=self._snapshot.uid,
            backend=manifests[0].backend,
            now_us=max(manifest.now_us for manifest in manifests),
        )

    def _part(self, number: int, manifest: Manifest, version: int) -> ImportedPart:
        """Write one subtask's files."""
        groups = manifest.made.range
        operator_state = OperatorStateContent.loaded(manifest.operator_state)
        with PartWriter(self._snapshot.opened.backend, self._opening(manifest)) as writer:
            for name, lineage in self._lineages.items():
                if name not in (TIMERS, DIRECTORY):
                    self._copy(writer, spec_of(lineage), groups)
            for spec, changes in self._tables.changes(number):
                writer.apply(spec, self._without_removed(changes, spec))
            if self._timers is not None:
                assert self._snapshot.key_codec is not None
                timers = self._timers_of(number, self._timers, groups)
                writer.add_timers(self._snapshot.key_codec, timers)
            part = writer.commit(version, manifest.made.subtask)
        return attrs.evolve(
            part,
            descriptions=self._descriptions,
            generations=self._generations,
            operator_state=manifest.operator_state,
            operator_files=[blob.name for blob in operator_state.files()],
            metrics={TTL_US: self._ttl_us} if self._ttl_us else {},
            times=self._times(manifest, part),
        )

    def _times(self, manifest: Manifest, part: ImportedPart) -> Mapping[str, Any]:
        """Return the clocks of timers: those of the version, with the next of new timers."""
        if not self._tables.has_timers:
            return manifest.times
        next_us = TimerClocks.loaded(part.times).next_us
        clocks = TimerClocks.loaded(manifest.times)
        return attrs.evolve(clocks, next_us=next_us, lists=False).stored()

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

    def _copy(self, writer: PartWriter, spec: TableSpec, groups: KeyGroupRange) -> None:
        writer.declare(spec)
        if spec.name not in self._tables.names:
            for one in self._stored(spec, groups):
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

    def _timers_of(
        self, number: int, spec: TableSpec, groups: KeyGroupRange
    ) -> Iterator[ImportedTimer]:
        timers = (
            self._tables.timers_of(number)
            if self._tables.has_timers
            else self._stored_timers(spec, groups)
        )
        for timer in timers:
            if self._snapshot.address_of(timer.key) not in self._removed:
                yield timer

    def _stored_timers(self, spec: TableSpec, groups: KeyGroupRange) -> Iterator[ImportedTimer]:
        assert spec.user_key is not None
        original = spec.user_key.original or (lambda address: address)
        for changes in self._stored(spec, groups):
            for cell in cells_of(changes):
                for at_us, key, packed in map(original, cell.content):
                    yield ImportedTimer(cell.group, cell.key[1], at_us, key, packed)


def _without(entries: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: entry for name, entry in entries.items() if name not in names}


def _points(changes: PointChanges, stays: Callable[[Any], bool]) -> PointChanges:
    rows = zip(changes.keys, changes.groups, changes.values, strict=True)
    kept = [row for row in rows if stays(row[0])]
    return PointChanges(*([row[part] for row in kept] for part in range(3)))


def _by_key(changes: Mapping[Any, Any], stays: Callable[[Any], bool]) -> dict[Any, Any]:
    return {key: change for key, change in changes.items() if stays(key)}
