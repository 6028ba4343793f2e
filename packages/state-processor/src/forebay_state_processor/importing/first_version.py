"""Import tables as the first version of an operator that does not exist yet."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_engine.execution.arguments import checked_max_parallelism
from forebay_engine.versions.choosing.savepoints import savepoint_object
from forebay_engine.versions.format.key_types import KeyType
from forebay_engine.versions.publishing import ImportedPart, ImportTarget, check_vacant, publish
from forebay_state_api.contract.backend import Opening
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.keys import KeyGroupRange, key_group_range_of
from forebay_state_api.plugins import plugins
from forebay_state_api.progress import SILENT, Progress
from forebay_state_processor.importing.checked_tables import CheckedTables
from forebay_state_processor.importing.declared_states import DeclaredStates
from forebay_state_processor.importing.subtask_part import NO_WATERMARK, PartWriter
from forebay_state_processor.importing.tables import Tables
from forebay_state_processor.reading.version_choice import OperatorSource

if TYPE_CHECKING:
    from forebay_state_api.codecs import ValueCodec
    from forebay_state_api.contract.backend import StateBackend
    from forebay_state_processor.reading.snapshot import Snapshot
    from forebay_state_processor.reading.stored_states import StateInfo

DEFAULT_KEY_GROUPS: Final = 128
"""The max parallelism of operators that do not choose one."""
ROWS_OF_PART: Final = 200_000
"""The most rows of a table in one part, as far as there are key groups; memory holds one part."""


@attrs.frozen(kw_only=True)
class Imported:
    """The version that `import_state` made."""

    version: int
    run: str | None
    """The key of the run that made it: with `version` it names the position. ``None`` after a dry
    run."""
    rows: Mapping[str, int]
    """State → the number of its rows."""
    timers: int


@attrs.frozen(kw_only=True)
class Position:
    """The position of an imported version in its query's history."""

    version: int = 1
    batch_ms: int = 0
    """The time of the batch before it; 0: the query has had none."""
    location: str | None = None
    """The query's checkpoint, as `ImportTarget.location`."""
    watermark_us: int = NO_WATERMARK


FIRST: Final = Position()
"""The first version of a query."""


@attrs.frozen(kw_only=True)
class NewOperator:
    """An operator that gets its first version, and how that is written."""

    at: OperatorSource
    backend: type[StateBackend]
    declared: DeclaredStates
    max_parallelism: int
    position: Position = FIRST
    now_us: int = attrs.field(factory=lambda: time.time_ns() // 1_000)
    """The time of the version, and of last access of content without one."""

    @cached_property
    def states(self) -> Mapping[str, StateInfo]:
        """The states by name."""
        return self.declared.infos()

    @cached_property
    def key(self) -> ValueCodec:
        """The codec of keys."""
        return self.declared.key_codec()

    def ranges(self, parts: int) -> list[KeyGroupRange]:
        """Return the key groups of each part."""
        return [key_group_range_of(at, parts, self.max_parallelism) for at in range(parts)]

    def target(self, parts: int) -> ImportTarget:
        """Return the version that is made."""
        return ImportTarget(
            version=self.position.version,
            max_parallelism=self.max_parallelism,
            parallelism=parts,
            batch_ms=self.position.batch_ms,
            location=self.position.location,
            keyed_by=self.declared.key.nameless(),
        )

    def check_timers(self, *, given: bool) -> None:
        """Refuse timers for a function that has none."""
        if given and not self.declared.has_timers:
            raise ConfigurationError(
                f"operator {self.at.uid!r} cannot have timers: its function has no on_timer"
            )

    def write(
        self, tables: CheckedTables, part: int, groups: KeyGroupRange, subtask: int
    ) -> ImportedPart:
        """Write the files of a subtask, whose rows are a part of ``tables``."""
        at, options = self.at, self.at.options_of(self.backend)
        opening = Opening.outside_job(at.storage, at.uid, groups, options)
        with PartWriter(self.backend, opening) as writer:
            for info in self.states.values():
                writer.declare(info.spec)
            for spec, changes in tables.changes(part):
                writer.apply(spec, changes)
            if self.declared.has_timers:
                writer.add_timers(self.key, tables.timers_of(part))
            return writer.commit(
                self.position.version,
                subtask,
                ttl_us=self.declared.ttl_us,
                now_us=self.position.batch_ms * 1_000 or None,
                watermark_us=self.position.watermark_us,
            )

    def publish(self, parts: Sequence[ImportedPart], savepoint: str | None) -> str:
        """Make a version of all parts; return the key of its run."""
        return publish(
            self.at.storage,
            self.target(len(parts)),
            parts,
            uid=self.at.uid,
            backend=self.backend.name,
            now_us=self.now_us,
            savepoint=savepoint,
        )


def import_state(
    state_dir: str,
    *,
    query: str,
    uid: str,
    tables: Mapping[str, Any] | Any,
    timers: Any = None,
    function: Any = None,
    key: Any = None,
    like: Snapshot | None = None,
    max_parallelism: int | None = None,
    savepoint: str | None = None,
    dry_run: bool = False,
    conf: Mapping[str, str] | None = None,
) -> Imported:
    """Make tables the first version of an operator that does not exist yet.

    The query that starts with this name and uid begins with it. Types come from ``function`` and
    ``key``, or from ``like``.

    :param state_dir: the state directory: a path or a URL.
    :param query: the name that the query passes as ``query=``; or, for an operator that is added to
        a query, the query's id.
    :param uid: the operator's uid.
    :param tables: state → its rows, in the columns of `Snapshot.to_arrow`; or one table in those
        of `Snapshot.table`, where null is no content. A table is a `pyarrow.Table`, a
        `pyarrow.dataset.Dataset`, which is read in batches, or an object with the Arrow C stream.
    :param timers: a table of timers, as `Snapshot.timer_table` has it.
    :param function: the query's function, or its class; its ``open`` is called.
    :param key: the type of the key column, such as ``"bigint"``, or ``"name type, name type"``.
    :param like: an open snapshot of an operator with the same states.
    :param max_parallelism: the operator's number of key groups; default: as ``like`` has, or 128.
    :param savepoint: a name that keeps the version until the savepoint is deleted, so that other
        queries can begin with it by ``restore_from=``.
    :param dry_run: check everything, and write nothing.
    :param conf: settings ``spark.forebay.*``: the backend, its options, the storage's.

    Rows are checked, and split on local disk, before anything is written to ``state_dir``; the
    version appears when all of it is there. Raises `ConfigurationError` for rows that do not fit,
    and for an operator that has state; `FencedError` if a query or another import begins meanwhile.
    """
    at = OperatorSource.of(state_dir, query=query, uid=uid, conf=conf or {})
    new = new_operator(at, function=function, key=key, like=like, max_parallelism=max_parallelism)
    given = Tables.of(tables, timers)
    return import_tables(new, given, savepoint=savepoint, dry_run=dry_run)


def new_operator(
    at: OperatorSource,
    *,
    function: Any = None,
    key: Any = None,
    like: Snapshot | None = None,
    max_parallelism: int | None = None,
) -> NewOperator:
    """Return the operator to be made; the parameters are as for `import_state`.

    Raises `ConfigurationError` if it has state already.
    """
    backend = plugins().backend(at.settings["state.backend"])
    groups = DEFAULT_KEY_GROUPS if like is None else like.max_parallelism
    if max_parallelism is not None:
        groups = checked_max_parallelism(max_parallelism, at.uid)
    new = NewOperator(
        at=at,
        backend=backend,
        declared=_declared(at.uid, backend, function=function, key=key, like=like),
        max_parallelism=groups,
    )
    check_vacant(at.storage, new.target(1), at.uid)
    return new


def _declared(
    uid: str, backend: type[StateBackend], *, function: Any, key: Any, like: Snapshot | None
) -> DeclaredStates:
    """Return the types that rows must have, which come from exactly one place."""
    if (function is None) == (like is None):
        raise ConfigurationError(
            "the types of the states come from the query's function, or from an operator that has "
            "them: name one of them"
        )
    if (function is None) != (key is None):
        raise ConfigurationError(
            "the function and the type of the key belong together: pass both, or neither"
        )
    if like is not None:
        return DeclaredStates.of_snapshot(like)
    function = function() if isinstance(function, type) else copy.copy(function)
    return DeclaredStates.of(function, key=KeyType.of(key), uid=uid, backend=backend)


def import_tables(
    new: NewOperator,
    tables: Tables,
    *,
    savepoint: str | None = None,
    dry_run: bool = False,
    progress: Progress = SILENT,
) -> Imported:
    """Publish tables as the first version of an operator; it raises what `import_state` raises.

    ``progress`` receives the parts that were written.
    """
    check_savepoint(savepoint)
    if not tables:
        raise ConfigurationError("nothing to import: give a table")
    new.check_timers(given=tables.timers is not None)
    ranges = new.ranges(_parts(tables, new.max_parallelism))
    with CheckedTables.of(tables, new.states, new.key, ranges, now_us=new.now_us) as checked:
        run = None
        if not dry_run:
            progress.stage("writing", len(ranges))
            parts = []
            for number, groups in enumerate(ranges):
                parts.append(new.write(checked, number, groups, number))
                progress.advance()
            run = new.publish(parts, savepoint)
        return Imported(version=1, run=run, rows=checked.rows, timers=checked.timers)


def check_savepoint(name: str | None) -> None:
    """Refuse a name that no savepoint can have."""
    if name is not None:
        savepoint_object(name)


def _parts(tables: Tables, max_parallelism: int) -> int:
    """Return a number of parts that memory can hold one by one."""
    rows = max(table.count() for table in tables.every)
    return min(max_parallelism, max(1, -(-rows // ROWS_OF_PART)))
