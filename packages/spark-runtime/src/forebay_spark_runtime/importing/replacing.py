"""Replace the version that a stopped query opens next by DataFrames: one part in each task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import attrs

from forebay_engine.execution.arguments import checked_uid
from forebay_engine.versions.choosing.finality import ShownVersion
from forebay_engine.versions.format.epochs import RunVersion
from forebay_engine.versions.publishing import ImportTarget
from forebay_spark_runtime.importing.frames import Frames, rows_of
from forebay_spark_runtime.importing.table_task import ImportPlan
from forebay_state_processor.importing.replacing import (
    Replaced,
    imported_at_us,
    open_next_version,
    publish_copy,
    stored_types,
)
from forebay_state_processor.importing.version_edit import VersionEdit
from forebay_state_processor.reading.snapshot import snapshot_of
from forebay_state_processor.reading.version_content import VersionPart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from forebay_engine.versions.publishing import ImportedPart
    from forebay_state_api.codecs import ValueCodec
    from forebay_state_api.keys import KeyGroupRange
    from forebay_state_processor.importing.checked_tables import CheckedTables
    from forebay_state_processor.importing.tables import TableLayout
    from forebay_state_processor.importing.version_edit import StoredTypes
    from forebay_state_processor.reading.snapshot import Snapshot
    from forebay_state_processor.reading.stored_states import StateInfo


@attrs.frozen(kw_only=True)
class ReplacementPlan(ImportPlan):
    """Writes the parts of an edited copy of a version."""

    version: int
    run_key: str
    types: StoredTypes
    removed: frozenset[Any]
    """The addresses of keys."""

    @classmethod
    def of(
        cls,
        snapshot: Snapshot,
        layouts: Sequence[TableLayout],
        *,
        without_keys: Sequence[Any],
        dry_run: bool,
    ) -> Self:
        """Return the plan for a copy of what ``snapshot`` shows, whose settings name its place.

        Raises `ConfigurationError` for tables and keys that do not fit.
        """
        made, source = snapshot.manifests[0].made, snapshot.source
        return cls(
            state_dir=source.settings["state.dir"],
            query=source.query,
            uid=source.uid,
            settings=source.settings,
            layouts=layouts,
            parallelism=made.parallelism,
            max_parallelism=made.max_parallelism,
            now_us=imported_at_us(snapshot),
            dry_run=dry_run,
            version=snapshot.version,
            run_key=snapshot.run,
            types=stored_types(snapshot, timers=any(one.is_timers for one in layouts)),
            removed=frozenset(map(snapshot.address_of, without_keys)),
        )

    @property
    def states(self) -> Mapping[str, StateInfo]:
        """The states of the version."""
        return self.types.states

    @property
    def key(self) -> ValueCodec:
        """The codec of the version's keys."""
        return self.types.key_codec

    def write(self, tables: CheckedTables, subtask: int, groups: KeyGroupRange) -> ImportedPart:
        """Copy the part, with the new rows in place of the rows that they replace."""
        with self._part(groups) as snapshot:
            (manifest,) = [one for one in snapshot.manifests if one.made.subtask == subtask]
            edit = VersionEdit(snapshot, tables, self.types, self.removed)
            return edit.part(0, manifest, self.version)

    def _part(self, groups: KeyGroupRange) -> Snapshot:
        at = RunVersion(version=self.version, run_key=self.run_key)
        part = VersionPart(groups, None)
        return snapshot_of(self.read, ShownVersion(at, final=True), show_expired=True, part=part)


def replace_state(
    tables: DataFrame | Mapping[str, DataFrame],
    *,
    query: str,
    uid: str,
    checkpoint: str,
    timers: DataFrame | None = None,
    without_keys: Sequence[Any] = (),
    state_dir: str | None = None,
    dry_run: bool = False,
) -> Replaced:
    """Replace the version that a stopped query opens next by a copy with DataFrames in it.

    As `forebay_state_processor.importing.replace_state`, where a task edits the part of each
    subtask: it needs memory for that part, and local disk for the rows.

    :param tables: state → the rows that replace all of its rows, in the columns of
        `Snapshot.to_arrow`; or one DataFrame in the columns of `Snapshot.table`, which replaces the
        states that it has, and where null is no content. A key without a row is removed from that
        state.
    :param query: the query's id, or the name that was passed as ``query=``.
    :param uid: the operator's uid.
    :param checkpoint: the query's ``checkpointLocation``, which this process reads: a path or a
        URL.
    :param timers: a DataFrame of timers that replaces all timers, as `Snapshot.timer_table` has it.
    :param without_keys: keys that are removed from every state, with their timers.
    :param state_dir: the state directory; default: the setting ``spark.forebay.state.dir``.
    :param dry_run: check everything, and write nothing.

    Raises `ConfigurationError` for a row that does not fit, after the files of the other parts are
    deleted again, and `FencedError` if the query or another import begins meanwhile.
    """
    uid = checked_uid(uid)
    given = Frames.of(tables, timers, "replace_state()")
    read = given.operator(query, uid, {"state.dir": state_dir})
    with open_next_version(read, checkpoint) as snapshot:
        target = ImportTarget.replacing(read.storage, snapshot.opened.reader)
        plan = ReplacementPlan.of(
            snapshot, given.layouts, without_keys=without_keys, dry_run=dry_run
        )
        plan.tables(snapshot.key_groups).close()
        with given.parts(given.keys(uid), plan) as (answers, parts):
            run = None if dry_run else publish_copy(snapshot, target, parts)
    return Replaced(
        version=target.version,
        run=run,
        rows=rows_of(answers),
        timers=None if timers is None else sum(one.timers for one in answers),
    )
