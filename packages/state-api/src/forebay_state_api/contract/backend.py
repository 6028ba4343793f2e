"""The contract of state backends: they store one operator's cells for one range of key groups.

A backend stores *tables*, one per declared state, of *cells*. A cell is addressed by (key group,
key, namespace), in a map table also by a user key. A table has one of three shapes (`Shape`). The
kinds of state, with TTL or without, are implemented once, on top of tables, and keep the reads and
writes of the current micro-batch in a `Space`. So a backend serves batched reads of earlier data
and takes batched writes, and knows nothing about kinds, records, futures or order. Equal keys and
namespaces have one canonical form (see `canonical_key`), so a backend may look them up by their
encoding.

Life of a backend object, all in one worker process::

    backend = Backend.open(opening)  # one version, one key-group range; may be kept in a cache
    table = backend.table(spec)  # for each state that the function declares
    table.get_many / table.scan  # any number, on backend threads (see each method)
    table.apply(changes)  # when the write buffer is full, and before commit
    files = backend.commit(version)  # durable when it returns; makes nothing visible
    backend.installed(manifest_id)  # the manifest that names the files is durable
    backend.close()  # always, also after a failure; uninstalled work is lost

Visibility is not the backend's concern: the manifest (`forebay_engine.versions`) makes files
live. A backend never overwrites and never deletes an object.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

import attrs

from forebay_state_api.codecs.wrapping_codecs import stamped_codec
from forebay_state_api.contract.changes import ABSENT, Changes, PointChanges, Shape, Space
from forebay_state_api.contract.files import CommittedState, ParentState
from forebay_state_api.contract.key_range import KeyRange

if TYPE_CHECKING:
    from forebay_state_api.codecs import ValueCodec
    from forebay_state_api.contract.columns import CellColumns, EncodedKeys, NamespaceColumns
    from forebay_state_api.contract.compaction_service import CompactionService
    from forebay_state_api.contract.expiry import Expiry
    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_api.job.ttl import CleanupInCompaction, CleanupIncrementally
    from forebay_state_api.keys import KeyGroupRange

__all__ = [
    "NO_TIME",
    "Capability",
    "Opening",
    "RangeOfScan",
    "Scan",
    "StateBackend",
    "Table",
    "TableSpec",
    "packed_bounds",
]


NO_TIME: Final = -(1 << 62)
"""`Opening.now_us` of a subtask that got no row and so no time: earlier than every time."""


class Capability(enum.Flag):
    """Optional abilities of a backend; the conformance kit tests exactly the claimed ones."""

    NONE = 0
    RESIDENT = enum.auto()
    """All cells of an open table are in memory (`Space.complete`); reads never wait."""
    CLEANUP_FULL_SNAPSHOT = enum.auto()
    """TTL: drops expired cells when it writes a full snapshot."""
    CLEANUP_INCREMENTALLY = enum.auto()
    """TTL: checks some cells at each access."""
    CLEANUP_IN_COMPACTION = enum.auto()
    """TTL: drops expired cells when it folds or compacts files."""


@attrs.frozen(kw_only=True)
class TableSpec:
    """One declared state, as a backend sees it."""

    name: str
    """The descriptor's name, unique in the operator."""
    shape: Shape
    kind: str
    """The kind of state that uses the table; only for `description`."""
    key: ValueCodec
    """Codec of the operator's key."""
    value: ValueCodec
    """Codec of the value, of list elements, or of the map's values, which may be ``None``."""
    user_key: ValueCodec | None = None
    """Codec of the map's user key; ``None`` for the other shapes."""
    ordered: bool = False
    """The map is read in the order of its user keys (`Table.scan_range`). Then packed user keys
    (`ValueCodec.pack_one`) are in that order, and their type never changes."""
    ttl: bool = False
    """The state has a time to live: cells, list elements and map entries are pairs ``(last access
    in µs, value)``. A backend packs them with `stored`, or packs the two parts separately."""
    compaction_expiry: Expiry | None = None
    """Compaction drops data that have expired by this rule; ``None`` if it must not.

    Not part of the description: a job may restart with a different rule.
    """
    compaction_clock_every: int | None = None
    """The number of cells after which compaction reads the clock again; ``None`` means never."""
    snapshot_expiry: Expiry | None = None
    """A full snapshot drops data that have expired by this rule; ``None`` if it must not.

    Like ``compaction_expiry``, it is not part of the description.
    """
    columns: bool = False
    """Whether the run reads and writes this point table by columns (`Table.get_columns`). A backend
    may hold it by columns in memory then; nothing stored differs. Its spaces may be incomplete,
    also of a resident backend. Not part of the description: a job may restart with either."""
    generations: Sequence[Mapping[str, Any]] = ()
    """The declarations of value and user key since the state was first stored: one for each change
    of a type, the current one last; empty if they are unknown. `reader_of` needs them."""

    @cached_property
    def stored(self) -> ValueCodec:
        """Codec of cells, list elements and map entries: ``value``, or with TTL its pairs."""
        return stamped_codec(self.value) if self.ttl else self.value

    def description(self) -> dict[str, Any]:
        """Plain data that is stored with the state and compared on restore.

        If a type changed and later changed back, data from before and after have different
        descriptions, and a backend must not merge them.
        """
        generation = {"generation": len(self.generations) - 1} if len(self.generations) > 1 else {}
        # Kinds named like their shape, or stored as points, do not need a shape here.
        shape = {} if Shape.of({"kind": self.kind}) is self.shape else {"shape": self.shape.value}
        ordered = {"ordered": True} if self.ordered else {}
        return {
            "name": self.name,
            "kind": self.kind,
            "key": self.key.description,
            "value": self.value.description,
            "user_key": None if self.user_key is None else self.user_key.description,
            "ttl": self.ttl,
            **shape,
            **ordered,
            **generation,
        }


@attrs.frozen(kw_only=True)
class Opening:
    """The arguments of `StateBackend.open`."""

    storage: ObjectStorage
    """The storage of the operator's directory."""
    path: str
    """The operator's directory as text, for messages and as part of a cache's key."""
    uid: str
    version: int
    """The version that is opened; 0 is the empty version."""
    range: KeyGroupRange
    parents: Sequence[ParentState]
    """Parts of the opened version: disjoint, in key-group order, covering the range; empty for
    version 0.
    """
    options: Mapping[str, Any] = attrs.field(repr=False)
    """Settings ``spark.forebay.<backend name>.*`` without the prefix, typed by the backend's
    ``options`` declaration."""
    now_us: int
    """The micro-batch's time, µs since the epoch: the only clock that state depends on.
    `NO_TIME` if the subtask does not know it; then nothing expires."""
    cache_bytes: int
    """This process's budget for data that backends keep between batches, for all operators
    together; with 0 nothing is kept."""
    compaction: CompactionService | None = None
    """The service for compaction jobs, one per process and state directory; ``None`` if the backend
    must not submit any, for example when state is only read."""
    operator: str = ""
    """The operator's directory relative to the state directory: `CompactionJob.operator`."""
    run: str = ""
    """Identifies the query's run in all its batches and processes; a restarted query has a new run.
    Empty if it is unknown."""
    tables: Collection[str] | None = None
    """The names of the tables that will be opened, in a version that is only read; ``None`` if any
    table may be opened. A backend that reads tables when it opens them may read these alone."""
    retry_budget_s: float = 30.0
    """Time in seconds within which a request to a store of the backend's own may be retried: the
    setting ``spark.forebay.storage.retry-budget``. ``storage`` tries its own requests again."""

    @classmethod
    def outside_job(
        cls,
        storage: ObjectStorage,
        uid: str,
        range: KeyGroupRange,  # noqa: A002 - the field's name
        options: Mapping[str, Any],
        *,
        version: int = 0,
        parents: Sequence[ParentState] = (),
        now_us: int = NO_TIME,
        cache_bytes: int = 0,
        tables: Collection[str] | None = None,
    ) -> Self:
        """Return the opening of a version, by default the empty one, by a reader or an import.

        It shares no cache with a job in the same process, and submits no compaction.
        """
        return cls(
            storage=storage,
            path=f"{storage.url}#outside-job",
            uid=uid,
            version=version,
            range=range,
            parents=parents,
            options=options,
            now_us=now_us,
            cache_bytes=cache_bytes,
            tables=tables,
        )


class Scan(abc.ABC):
    """The elements of one list or the entries of one map, at the time when the scan was created.

    It is a snapshot: a later `Table.apply` is not visible in it.
    """

    @abc.abstractmethod
    def pages(self, page_size: int) -> Iterator[list[Any]]:
        """Yield the content from the beginning, in lists of at most ``page_size``.

        A list yields elements in insertion order; a map yields ``(user key address, value)`` pairs
        in any order. Each call starts again. Called on a backend thread; may block.
        """


class RangeOfScan(Scan):
    """The entries of a map's scan in a range of keys."""

    def __init__(self, whole: Scan, part: KeyRange) -> None:
        """``whole`` scans the whole map."""
        self._whole = whole
        self._part = part

    def pages(self, page_size: int) -> Iterator[list[Any]]:
        every = (entry for page in self._whole.pages(page_size) for entry in page)
        found = self._part.cut(every)
        for start in range(0, len(found), page_size):
            yield found[start : start + page_size]


def packed_bounds(spec: TableSpec, part: KeyRange) -> tuple[bytes | None, bytes | None]:
    """Return the bytes between which the packed user keys of a range are.

    They are bounds of an ordered map: the first bytes are included, the second excluded; ``None``:
    there is no bound.
    """
    assert spec.user_key is not None
    pack = spec.user_key.pack_one  # of ordered user keys an address is a user key
    low, high = (None if bound is None else pack(bound) for bound in (part.low, part.high))
    return low, high


class Table(abc.ABC):
    """The cells of one declared state within the opened key-group range.

    Reads see the opened version plus everything applied so far. `get_many`, `get_entries` and
    `Scan.pages` may run on several backend threads at once; `space`, `scan` and `apply` are called
    on the task thread, `apply` never during a read.
    """

    @abc.abstractmethod
    def space(self, namespace: Any) -> Space:
        """Return the space of ``namespace`` (``None`` means the default).

        The same object each time.
        """

    @abc.abstractmethod
    def get_many(self, namespace: Any, keys: Sequence[tuple[int, Any]]) -> list[Any]:
        """Return the values in a point table of ``(key group, key)`` cells, in order.

        A cell that does not exist gives ``ABSENT``. There may be any number of cells. The engine
        does not change the values.
        """

    @abc.abstractmethod
    def get_entries(self, namespace: Any, cells: Sequence[tuple[int, Any, Any]]) -> list[Any]:
        """Return the values in a map table of ``(key group, key, user key address)`` cells.

        Otherwise as `get_many`.
        """

    @abc.abstractmethod
    def scan(self, namespace: Any, group: int, key: Any) -> Scan:
        """Return a scan of the content of one key in a list or map table.

        Takes the snapshot without waiting: it is called on the task thread when the iteration is
        requested. `Scan.pages` does the reading.
        """

    def scan_range(self, namespace: Any, group: int, key: Any, part: KeyRange) -> Scan:
        """Return a scan of one key's entries in a range of an ordered map table, in its direction.

        Takes the snapshot without waiting, as `scan` does. This implementation reads the whole map
        and holds the entries of the range in memory. A backend whose store is in the order of
        bytes reads the range alone: `packed_bounds` gives the bytes between which its keys are.
        """
        return RangeOfScan(self.scan(namespace, group, key), part)

    @abc.abstractmethod
    def apply(self, changes: Changes) -> None:
        """Apply writes. Later reads see them; they are durable only after `commit`."""

    @abc.abstractmethod
    def export(self, keys: int) -> Iterator[Changes]:
        """Yield all cells, as changes that fill an empty table of the same spec.

        So readers scan a version, another backend takes its state over, and a state's TTL can be
        switched on or off: then one backend object exports the opened version to another one,
        opened at version 0, that commits the next version. Each key and namespace occurs once,
        about ``keys`` of them in each item, in any order, as `Changes.whole` builds them. Called on
        the task thread; nothing is applied until the iteration ends. May block.
        """

    def get_columns(self, spec: TableSpec, namespace: Any, keys: EncodedKeys) -> CellColumns:
        """Return the cells of ``keys`` in a point table, in order, in arrays of the caller's own.

        ``spec`` is that of the table, here and below. Expired cells are among them, with their
        times. Raises `ColumnValueError` for a value that the columns of its type cannot hold.
        By default this and the next two methods go through those for single cells.
        """
        from forebay_state_api.contract.columns import CellColumns

        decoded, space = keys.decoded(spec.key), self.space(namespace)
        if space.complete:
            cells = [space.cells.get(key, ABSENT) for key in decoded]
        else:
            pairs = zip(keys.groups.tolist(), decoded, strict=True)
            cells = self.get_many(namespace, [*pairs])
        return CellColumns.of(spec.value, decoded, cells, ttl=spec.ttl)

    def apply_columns(
        self, spec: TableSpec, namespace: Any, keys: EncodedKeys, cells: CellColumns
    ) -> None:
        """Apply writes to a point table; each key occurs once. Otherwise as `apply`.

        It changes the cells of a resident table, too. A micro-batch uses a namespace of a table
        either by columns or by single cells.
        """
        decoded, values = keys.decoded(spec.key), cells.cells(spec.value)
        space = self.space(namespace)
        for key, value in zip(decoded, values, strict=True):
            if space.complete and value is not ABSENT:
                space.cells[key] = value
            else:
                space.cells.pop(key, None)
        points = PointChanges(decoded, keys.groups.tolist(), values)
        self.apply(Changes(points={namespace: points}))

    def export_columns(self, spec: TableSpec, keys: int) -> Iterator[NamespaceColumns]:
        """Yield all cells of a point table, as `export` does. Raises as `get_columns` does."""
        from forebay_state_api.contract.columns import CellColumns, EncodedKeys

        for changes in self.export(keys):
            for namespace, points in changes.points.items():
                encoded = EncodedKeys.of(spec.key, points.keys, points.groups)
                cells = CellColumns.of(spec.value, points.keys, points.values, ttl=spec.ttl)
                yield namespace, encoded, cells

    def keys(self, namespace: Any, page_size: int) -> Iterator[list[Any]]:
        """Yield the keys with a cell in ``namespace``, in lists of at most ``page_size``.

        It is a snapshot of the time of the call: `apply` may come between two pages, and is not
        visible. Each key occurs once, in any order. Keys whose content was deleted may occur, too:
        the engine reads it. Called on the task thread; may block. By default it goes through
        `export`, and so holds the keys of all pages in memory.
        """
        found = [key for changes in self.export(page_size) for key in changes.keys(namespace)]
        return (found[start : start + page_size] for start in range(0, len(found), page_size))

    def sweep(self, checks: int, until_us: int) -> int:
        """Check the next ``checks`` cells and remove data with a time of ``until_us`` or older.

        For backends with `Capability.CLEANUP_INCREMENTALLY` and tables with TTL. It continues where
        the last sweep of the table stopped, even in an earlier version, wraps around at the end,
        and checks no cell twice. In lists and maps it removes single elements and entries. Returns
        the number of values, elements and entries that it removed. Called on the task thread at
        most once, after the last `apply`: spaces are not used any more.
        """
        raise NotImplementedError


class StateBackend(abc.ABC):
    """One opened version of an operator's state, for one range of key groups."""

    name: ClassVar[str]
    """The name in ``spark.forebay.state.backend``; lower case."""
    contract_version: ClassVar[int]
    """The `CONTRACT_VERSION` that the class was written for. Each class sets it; it is not
    inherited."""
    capabilities: ClassVar[Capability] = Capability.NONE
    background_cleanup: ClassVar[CleanupIncrementally | CleanupInCompaction | None] = None
    """The clean-up that `CleanupInBackground` means for this backend; its entries are checked for
    each record instead of each access."""
    options: ClassVar[Mapping[str, Any]] = {}
    """The backend's settings: name → `forebay_state_api.settings.Setting`; users set them as
    ``spark.forebay.<backend name>.<setting>``."""

    @classmethod
    @abc.abstractmethod
    def open(cls, opening: Opening) -> StateBackend:
        """Open a version. Only reads from storage.

        Raises `CorruptStateError` for a truncated or altered file, here or at the first read.
        """

    @classmethod
    def cached_ranges(cls, path: str, version: int) -> Collection[KeyGroupRange]:
        """Return the ranges that this process caches and `catch_up` should bring up to date.

        These are ranges of the operator at ``path`` (`Opening.path`) that a subtask in this process
        used not long before ``version``.
        """
        del path, version
        return ()

    @classmethod
    def catch_up(cls, opening: Opening) -> None:
        """Bring this process's cache of a range up to a version that another process made.

        Called between batches, on a separate thread: an `open` of the same range waits for it.
        """
        del opening

    @classmethod
    def clear(
        cls, storage: ObjectStorage, options: Mapping[str, Any], *, retry_budget_s: float
    ) -> None:
        """Delete what a store of the backend's own holds for files that are gone.

        Comes after each pass of the janitor over an operator's directory, on the janitor's thread;
        ``storage`` is rooted there, ``options`` and ``retry_budget_s`` are as in `Opening`. Read
        the store's commits first and list the names afterwards: every commit that was read then
        has its file in the list, unless the janitor deleted it. What it raises is logged, and the
        next pass tries again.
        """
        del storage, options, retry_budget_s

    @abc.abstractmethod
    def table(self, spec: TableSpec) -> Table:
        """Return the table of a declared state; a new one is created at its first commit.

        Raises `StateMigrationError` when the state stored under the name cannot be read with
        ``spec`` (`forebay_state_api.codecs.schema_resolution` decides, so all backends agree).
        """

    def export(self, spec: TableSpec, keys: int) -> Iterator[Changes]:
        """Yield all cells of one state, as `Table.export` does.

        Readers use nothing else of the table, so a backend whose tables are costly to make need not
        make one. Raises as `table` does.
        """
        return self.table(spec).export(keys)

    def stored_bytes(self) -> Mapping[str, int] | None:
        """Return state → the bytes that hold its cells in the opened range.

        Returns ``None`` if unknown. For readers, which show the numbers. States without bytes may
        be missing. Overwritten data count as long as they are stored, and so do neighbours in the
        same block. Called before anything is applied; may block.
        """
        return None

    @abc.abstractmethod
    def commit(self, version: int) -> CommittedState:
        """Make everything applied so far durable as files of ``version``.

        Keeps the data of states for which `table` was not called. Writes no file if nothing
        changed; files do not accumulate without bound over the commits. A failed write is raised.
        The same changes give the same content, though not necessarily the same bytes. Called once,
        after the last `Table.apply`, on the task thread.
        """

    def measured(self) -> Mapping[str, float]:
        """Return the metrics of this object; called after `commit`.

        Keys are keys of `forebay_state_api.metrics.KEYED` in progress events, such as
        ``runs_max``. Leave out what you do not know. Makes no requests.
        """
        return {}

    def installed(self, manifest_id: str) -> None:  # noqa: B027 - a hook that need not be used
        """Allow caching: the manifest of this commit is durable."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release everything that is not cached. Safe to call twice, and after any failure."""
