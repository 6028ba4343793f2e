"""Replace the version that a stopped query opens next by an edited copy of it.

Tables replace states; keys are removed from all states and timers; all else is copied. Everything
is checked before the first file is written, and the copy counts when all of it is there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from forebay_engine.versions.choosing.finality import ShownVersion
from forebay_engine.versions.format.epochs import RunVersion
from forebay_engine.versions.publishing import ImportTarget, open_replaced, publish
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.progress import SILENT, Progress
from forebay_state_api.storage import open_storage
from forebay_state_processor.importing.checked_tables import CheckedTables
from forebay_state_processor.importing.spark_checkpoint import StoppedQuery
from forebay_state_processor.importing.tables import Tables
from forebay_state_processor.importing.version_edit import StoredTypes, VersionEdit
from forebay_state_processor.reading.snapshot import Snapshot, snapshot_of
from forebay_state_processor.reading.version_choice import OperatorSource

if TYPE_CHECKING:
    from forebay_engine.versions.publishing import ImportedPart


@attrs.frozen(kw_only=True)
class Replaced:
    """The version that `replace_version` made."""

    version: int
    run: str | None
    """The key of the run that made the copy: with `version` it names the position. ``None`` after a
    dry run."""
    rows: Mapping[str, int]
    """Replaced state → the number of its rows."""
    timers: int | None
    """The number of timers that replaced all others; ``None`` if the timers stayed."""


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
        `Snapshot.to_arrow`; or one table in the columns of `Snapshot.table`, which replaces the
        states that it has, and where null is no content. A table is a `pyarrow.Table`, a
        `pyarrow.dataset.Dataset`, which is read in batches, or an object with the Arrow C stream. A
        key without a row is removed from that state.
    :param timers: a table of timers that replaces all timers, as `Snapshot.timer_table` has it.
    :param conf: settings ``spark.forebay.*``, such as the storage's.

    The other parameters, and the errors, are as for `replace_version`.
    """
    read = OperatorSource.of(state_dir, query=query, uid=uid, conf=conf or {})
    with open_next_version(read, checkpoint) as snapshot:
        given = Tables.of(tables, timers)
        return replace_version(snapshot, given, without_keys=without_keys, dry_run=dry_run)


def open_next(
    state_dir: str,
    *,
    query: str,
    uid: str,
    checkpoint: str,
    conf: Mapping[str, str] | None = None,
) -> Snapshot:
    """Open the version that `replace_state` edits, to read what is edited.

    It may be older than the newest complete version, whose batch Spark has not committed and runs
    again. What has expired at its time is not shown. The parameters are as for `replace_state`.

    Raises `ConfigurationError` as `replace_state` does if there is no such version.
    """
    read = OperatorSource.of(state_dir, query=query, uid=uid, conf=conf or {})
    return open_next_version(read, checkpoint, show_expired=False)


def open_next_version(
    read: OperatorSource, checkpoint: str, *, show_expired: bool = True
) -> Snapshot:
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
        return snapshot_of(read, ShownVersion(at, final=True), show_expired=show_expired)


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
    types = stored_types(snapshot, timers=tables.timers is not None)
    ranges = [manifest.made.range for manifest in snapshot.manifests]
    now_us = imported_at_us(snapshot)
    with CheckedTables.of(tables, types.states, types.key_codec, ranges, now_us=now_us) as checked:
        run = None
        if not dry_run:
            edit = VersionEdit(snapshot, checked, types, removed)
            progress.stage("writing", len(ranges))
            parts = []
            for number, manifest in enumerate(snapshot.manifests):
                parts.append(edit.part(number, manifest, target.version))
                progress.advance()
            run = publish_copy(snapshot, target, parts)
        return Replaced(
            version=target.version,
            run=run,
            rows=checked.rows,
            timers=checked.timers if checked.has_timers else None,
        )


def stored_types(snapshot: Snapshot, *, timers: bool) -> StoredTypes:
    """Return the types of a version that is edited; ``timers``: with a table of timers.

    Raises `ConfigurationError` if the version has no such content.
    """
    where = f"version {snapshot.version} of operator {snapshot.uid!r}"
    types = StoredTypes.of(snapshot.manifests)
    if types is None:
        raise ConfigurationError(f"{where} has no keyed state")
    if timers and types.timers is None:
        raise ConfigurationError(f"{where} has no table of timers: its function has no on_timer")
    return types


def imported_at_us(snapshot: Snapshot) -> int:
    """Return the time of last access of content without one."""
    return 0 if snapshot.now_us is None else snapshot.now_us


def publish_copy(snapshot: Snapshot, target: ImportTarget, parts: Sequence[ImportedPart]) -> str:
    """Make the parts of all subtasks the version; return the key of its run."""
    manifests = snapshot.manifests
    return publish(
        snapshot.source.storage,
        target,
        parts,
        uid=snapshot.uid,
        backend=manifests[0].backend,
        now_us=max(manifest.now_us for manifest in manifests),
    )
