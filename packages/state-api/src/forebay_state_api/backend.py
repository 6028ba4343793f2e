"""The backend contract: what stores the cells of one operator, for one range of key groups.

A backend stores *tables*, one per declared state, of *cells*. A cell is addressed by (key group,
key, namespace), in a map table also by a user key. A table has one of three shapes (`Shape`). The
kinds of state, with TTL or without, are written once, on top of tables, and keep what the current
micro-batch reads and writes in a `Space`; so a backend answers batched reads of what was there
before and takes batched writes, and need not know anything about kinds, records, futures or order.
Keys and namespaces that are equal come in one form (see `canonical_key`), and may be found by what
they are encoded as.

Life of a backend object, all in one worker process::

    backend = Backend.open(opening)  # one version, one key-group range; may be kept in a cache
    table = backend.table(spec)  # for each state that the function declares
    table.get_many / table.scan  # any number, on backend threads (see each method)
    table.apply(changes)  # when the write buffer is full, and before commit
    files = backend.commit(version)  # durable when it returns; makes nothing visible
    backend.installed(manifest_id)  # the manifest that names the files is durable
    backend.close()  # always, also after a failure; uninstalled work is lost

Visibility is not the backend's concern: the manifest (`forebay_state_api.versions`) makes files
live. A backend never overwrites and never deletes an object.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import attrs

from forebay_state_api.codecs.derived import stamped_codec

if TYPE_CHECKING:
    from forebay_state_api.codecs import ValueCodec
    from forebay_state_api.compaction import CompactionService
    from forebay_state_api.expiry import Expiry
    from forebay_state_api.keys import KeyGroupRange
    from forebay_state_api.storage import ObjectStorage
    from forebay_state_api.ttl import CleanupInCompaction, CleanupIncrementally

CONTRACT_VERSION: Final = 2
"""The version of this contract. A backend states the one it implements as ``contract_version``."""


class _Absent(enum.Enum):
    ABSENT = "ABSENT"

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Final = _Absent.ABSENT
"""The answer for a cell that does not exist; ``None`` is a value that a map may hold."""


NO_TIME: Final = -(1 << 62)
"""`Opening.now_us` of a subtask that was given no row and so no time: earlier than every time."""


class Shape(enum.Enum):
    """What a table holds under each key and namespace, whatever kind of state uses it."""

    POINT = "point"
    """One value."""
    LIST = "list"
    """Elements, in the order in which they were appended."""
    MAP = "map"
    """Entries, each under a user key."""

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> Shape:
        """The shape of a table by its `TableSpec.description`."""
        told = description.get("shape", description["kind"])
        return cls(told) if told in ("list", "map") else cls.POINT


class Capability(enum.Flag):
    """What a backend can do beyond the core; the conformance kit tests exactly what is claimed."""

    NONE = 0
    RESIDENT = enum.auto()
    """All cells of an open table are in memory (`Space.complete`); reads never wait."""
    CLEANUP_FULL_SNAPSHOT = enum.auto()
    """TTL: drops expired cells when it writes a full snapshot."""
    CLEANUP_INCREMENTALLY = enum.auto()
    """TTL: checks some cells at each access."""
    CLEANUP_IN_COMPACTION = enum.auto()
    """TTL: drops expired cells when it folds or compacts files."""
    EXPORT = enum.auto()
    """`Table.export` gives out all cells, so that another backend can take the state over."""


@attrs.frozen(kw_only=True)
class TableSpec:
    """One declared state, as a backend sees it."""

    name: str
    """The descriptor's name, unique in the operator."""
    shape: Shape
    kind: str
    """The kind of state that uses the table, for `description` only."""
    key: ValueCodec
    """Codec of the operator's key."""
    value: ValueCodec
    """Codec of the value, of list elements, or of the map's values, which may be ``None``."""
    user_key: ValueCodec | None = None
    """Codec of the map's user key; ``None`` for the other shapes."""
    ttl: bool = False
    """The state has a time to live: cells, list elements and map entries are pairs ``(last access
    in µs, value)``. A backend packs them with `stored`, or the two parts apart."""
    compaction_expiry: Expiry | None = None
    """Compaction drops what is dead by this; ``None`` where it was not asked to.

    Not part of the description: a job may restart with another one.
    """
    compaction_clock_every: int | None = None
    """After so many cells compaction reads the clock again; ``None``: it never does."""
    snapshot_expiry: Expiry | None = None
    """A full snapshot drops what is dead by this; ``None`` where it was not asked to.

    Not part of the description, as ``compaction_expiry``.
    """
    generations: Sequence[Mapping[str, Any]] = ()
    """How value and user key were declared since the state is stored, once for each change of a
    type, the present declaration last; empty where nothing is known. `reader_of` needs them."""

    @property
    def stored(self) -> ValueCodec:
        """Codec of what cells, list elements and map entries are: ``value``, or its pairs."""
        return stamped_codec(self.value) if self.ttl else self.value

    def description(self) -> dict[str, Any]:
        """Plain data that is stored with the state and compared on restore.

        Data of one type that were written before and after it was another one have different
        descriptions: a backend must not join them.
        """
        generation = {"generation": len(self.generations) - 1} if len(self.generations) > 1 else {}
        # Kinds that are called like their shape, or stored as points, need not tell it.
        shape = {} if Shape.of({"kind": self.kind}) is self.shape else {"shape": self.shape.value}
        return {
            "name": self.name,
            "kind": self.kind,
            "key": self.key.description,
            "value": self.value.description,
            "user_key": None if self.user_key is None else self.user_key.description,
            "ttl": self.ttl,
            **shape,
            **generation,
        }


@attrs.frozen(kw_only=True)
class StateFile:
    """A file that a manifest names, with the key groups for which it is read.

    After a rescale the same file may be named by several manifests, each for its own range.
    """

    name: str
    """Name below the operator's directory."""
    size: int
    """Bytes; checked when the file is opened."""
    range: KeyGroupRange
    meta: Mapping[str, Any] = attrs.field(factory=dict)
    """Plain data of the backend's own (checksum, role, chain, entry counts …)."""


@attrs.frozen(kw_only=True)
class ParentState:
    """What one manifest of the opened version says, already clipped to the range being opened."""

    manifest_id: str
    """Random identity of the manifest; a cached copy is valid for exactly this identity."""
    range: KeyGroupRange
    """The part of the opened range that this parent covers."""
    whole: bool
    """The parent's own range is the opened range: nothing was clipped."""
    files: Sequence[StateFile]
    """In the order in which the parent named them."""
    meta: Mapping[str, Any]
    """`CommittedState.meta` of the parent's commit."""
    descriptions: Mapping[str, Mapping[str, Any]]
    """State name → `TableSpec.description` as it was last declared, also of states that were not.

    A file that was written earlier may hold values of an older, compatible type: a backend stores
    with its data how they were written.
    """


@attrs.frozen(kw_only=True)
class Opening:
    """What `StateBackend.open` gets."""

    storage: ObjectStorage
    """Rooted at the operator's directory."""
    path: str
    """The operator's directory as text, for messages and as part of a cache's key."""
    uid: str
    version: int
    """The version that is opened; 0 is empty."""
    range: KeyGroupRange
    parents: Sequence[ParentState]
    """Disjoint, in key-group order, together the whole range; empty for version 0."""
    options: Mapping[str, Any]
    """Settings ``spark.forebay.<backend name>.*`` without the prefix, typed by the backend's
    ``options`` declaration."""
    now_us: int
    """The micro-batch's time, µs since the epoch: the only clock that decides about state.
    `NO_TIME` where the subtask knows none: then nothing expires."""
    cache_bytes: int
    """Budget of this process for what backends keep between batches, all operators together: with 0
    nothing is kept."""
    compaction: CompactionService | None = None
    """Where compaction jobs run, one per process and state directory; ``None`` where none may be
    submitted, as for state that is only read."""
    operator: str = ""
    """The operator's directory relative to the state directory: `CompactionJob.operator`."""


@attrs.frozen(kw_only=True)
class CommittedState:
    """What a backend made durable for one version; goes into the manifest."""

    files: Sequence[StateFile]
    """All files that the version needs, oldest first within a key group."""
    meta: Mapping[str, Any] = attrs.field(factory=dict)
    """Plain data that the next opening needs."""
    protected: Sequence[str] = ()
    """Names of further files that the janitor must keep while the manifest lives; one that ends in
    ``/`` stands for all files below it, such as what a compaction that is under way writes."""
    keys: int | None = None
    """Number of (key, namespace) cells over all tables, where the backend knows it."""
    bytes_total: int = 0
    """Bytes of all files named in ``files``."""
    bytes_written: int = 0
    """Bytes that this commit wrote."""


@attrs.define
class Space:
    """The cells of one namespace of one table that this process holds during a micro-batch.

    The state objects read and write it directly; that is what makes an access that memory can
    answer cost one dictionary look-up. Keys are the operator's keys.

    * point tables: ``cells[key] = value``; list tables: ``cells[key] = list of elements``;
      map tables: ``cells[key] = {user key address: value}``.
    * ``complete``: a key that is not in ``cells`` does not exist. A resident backend hands out its
      own dictionaries with ``complete=True``. Otherwise ``cells`` holds what was read or written
      (``ABSENT`` for a cell known not to exist), and unknown cells are asked of the table.
    * ``dirty`` says what was written since the last `Table.apply`: key → key group in point tables,
      key → `ListChange` in list tables, key → `MapChange` in map tables. The cells hold the newest
      content all the same; an incomplete list or map that was only written to has no cell.
    """

    namespace: Any
    complete: bool
    cells: dict[Any, Any] = attrs.field(factory=dict)
    dirty: dict[Any, Any] = attrs.field(factory=dict)


@attrs.define
class PointChanges:
    """What a micro-batch wrote to the cells of one namespace of a point table, column-wise."""

    keys: list[Any]
    groups: list[int]
    values: list[Any]
    """The new value, or ``ABSENT`` for a deleted cell."""


@attrs.define
class ListChange:
    """What a micro-batch did to one list: ``replaced`` tells whether older elements are gone."""

    group: int
    replaced: bool = False
    elements: list[Any] = attrs.field(factory=list)
    """The elements appended (after the replacement, where there was one), in order. A list that
    was replaced and has no elements does not exist."""


@attrs.define
class MapChange:
    """What a micro-batch did to one map: entries put or removed after an optional clear."""

    group: int
    cleared: bool = False
    entries: dict[Any, Any] = attrs.field(factory=dict)
    """User key address → value, or ``ABSENT`` for a removed entry."""


@attrs.frozen
class Changes:
    """Writes to one table since the last `Table.apply`, by namespace.

    Only the member that fits the table's shape is filled, and all of it is the backend's from now
    on (the keys, values and lists in it are not changed any more). Of a resident table (one whose
    spaces are complete) the cells have already changed when this arrives.
    """

    points: Mapping[Any, PointChanges] = attrs.field(factory=dict)
    lists: Mapping[Any, Mapping[Any, ListChange]] = attrs.field(factory=dict)
    maps: Mapping[Any, Mapping[Any, MapChange]] = attrs.field(factory=dict)

    @classmethod
    def whole(cls, shape: Shape, namespace: Any, cells: Iterable[tuple[Any, int, Any]]) -> Changes:
        """What makes each of ``cells``, (key, key group, content), hold its content and no more.

        A content is a value, the elements of a list or the entries of a map; the latter two are
        copied. Cells that do not exist are left out: ``ABSENT``, empty lists and empty maps.
        """
        if shape is Shape.POINT:
            rows = [row for row in cells if row[2] is not ABSENT]
            columns = [[row[part] for row in rows] for part in range(3)]
            return cls(points={namespace: PointChanges(*columns)})
        if shape is Shape.LIST:
            lists = {
                key: ListChange(group, replaced=True, elements=list(content))
                for key, group, content in cells
                if content
            }
            return cls(lists={namespace: lists})
        maps = {
            key: MapChange(group, cleared=True, entries=dict(content))
            for key, group, content in cells
            if content
        }
        return cls(maps={namespace: maps})

    def __bool__(self) -> bool:
        return bool(self.points or self.lists or self.maps)


class Scan(abc.ABC):
    """The elements of one list or the entries of one map, as the table stood when it was made.

    The view does not move: a later `Table.apply` does not show in it.
    """

    @abc.abstractmethod
    def pages(self, page_size: int) -> Iterator[list[Any]]:
        """Yield the content from its beginning, in lists of at most ``page_size``.

        Lists give elements in insertion order; maps give ``(user key address, value)`` pairs in
        any order. Each call starts anew. Called on a backend thread; may block.
        """


class Table(abc.ABC):
    """The cells of one declared state within the opened key-group range.

    Reads see what was opened plus everything applied so far. `get_many`, `get_entries` and
    `Scan.pages` may run on several backend threads at once; `space`, `scan` and `apply` are called
    on the task thread, `apply` never while a read is under way.
    """

    @abc.abstractmethod
    def space(self, namespace: Any) -> Space:
        """The space of ``namespace`` (``None`` is the default one); the same object each time."""

    @abc.abstractmethod
    def get_many(self, namespace: Any, keys: Sequence[tuple[int, Any]]) -> list[Any]:
        """Point tables: the values of ``(key group, key)`` cells, in order; ``ABSENT`` for none.

        Of any number of cells. The engine does not change the values.
        """

    @abc.abstractmethod
    def get_entries(self, namespace: Any, cells: Sequence[tuple[int, Any, Any]]) -> list[Any]:
        """Map tables: the values of ``(key group, key, user key address)`` cells, in order.

        As `get_many`.
        """

    @abc.abstractmethod
    def scan(self, namespace: Any, group: int, key: Any) -> Scan:
        """List and map tables: all of one key.

        Takes the view and does not wait: it is called on the task thread, when the iteration is
        requested. What has to be read is read by `Scan.pages`.
        """

    @abc.abstractmethod
    def apply(self, changes: Changes) -> None:
        """Take writes. They are seen by later reads, and durable only after `commit`."""

    def export(self, keys: int) -> Iterator[Changes]:
        """Give out all cells, as changes that make an empty table of the same spec hold them.

        Each key and namespace comes once, about ``keys`` of them at a time, in any order, as
        `Changes.whole` makes them. Called on the task thread, on a table that nothing was applied
        to; may block. Needs `Capability.EXPORT`.
        """
        message = f"{type(self).__name__} cannot hand its {keys} cells to another backend"
        raise NotImplementedError(message)

    def sweep(self, checks: int, until_us: int) -> int:
        """Look at the next ``checks`` cells and remove what is of ``until_us`` or older.

        For backends with `Capability.CLEANUP_INCREMENTALLY` and tables with TTL. It goes on where
        the last sweep of the table stopped, also one of an earlier version, begins anew at the
        end, and looks at no cell twice. Of lists and maps single elements and entries go. Returns
        how many values, elements and entries went. Called on the task thread at most once, after
        the last `apply`: spaces are not used any more.
        """
        raise NotImplementedError


class StateBackend(abc.ABC):
    """One opened version of an operator's state, for one range of key groups."""

    name: ClassVar[str]
    """What ``spark.forebay.state.backend`` selects; lower case."""
    contract_version: ClassVar[int]
    """The `CONTRACT_VERSION` that the class was written for."""
    capabilities: ClassVar[Capability] = Capability.NONE
    background_cleanup: ClassVar[CleanupIncrementally | CleanupInCompaction | None] = None
    """What `CleanupInBackground` stands for: the entries are checked for each record and not for
    each access."""
    options: ClassVar[Mapping[str, Any]] = {}
    """Settings of the backend: name → `forebay_state_api.settings.Setting`; users set them as
    ``spark.forebay.<backend name>.<setting>``."""

    @classmethod
    @abc.abstractmethod
    def open(cls, opening: Opening) -> StateBackend:
        """Open a version. Reads only.

        Raises `CorruptStateError` for a truncated or altered file, here or at the first read.
        """

    @classmethod
    def kept(cls, path: str, version: int) -> Collection[KeyGroupRange]:
        """Ranges of which this process keeps an older version that `catch_up` should bring along.

        Those of the operator at ``path`` (`Opening.path`) that a subtask here used not long before
        ``version``.
        """
        del path, version
        return ()

    @classmethod
    def catch_up(cls, opening: Opening) -> None:
        """Bring what this process keeps of a range along to a version that another process made.

        Comes between batches, on a thread of its own: an `open` of the same range waits for it.
        """
        del opening

    @abc.abstractmethod
    def table(self, spec: TableSpec) -> Table:
        """The table of a declared state, made at its first commit if it is new.

        Raises `StateMigrationError` when what is stored under the name cannot be read with
        ``spec`` (`forebay_state_api.codecs.resolve` decides, so all backends agree).
        """

    @abc.abstractmethod
    def commit(self, version: int) -> CommittedState:
        """Make everything applied so far durable as files of ``version``.

        Data of states that were not asked for by `table` is kept. When nothing changed, no file is
        written; what is written does not add up over the commits. A write that fails is raised.
        The same changes give the same content, in whatever bytes. Called once, after the last
        `Table.apply`, on the task thread.
        """

    def installed(self, manifest_id: str) -> None:  # noqa: B027 - a hook that need not be used
        """The manifest of this commit is durable under ``manifest_id``; caching is now allowed."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release what is not kept. Safe to call twice, and after any failure."""
