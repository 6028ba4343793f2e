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
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import attrs

from forebay_state_api.codecs.derived import stamped_codec
from forebay_state_api.contract.changes import Changes, Shape, Space
from forebay_state_api.contract.files import CommittedState, ParentState

if TYPE_CHECKING:
    from forebay_state_api.codecs import ValueCodec
    from forebay_state_api.contract.compaction_service import CompactionService
    from forebay_state_api.contract.expiry import Expiry
    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_api.job.ttl import CleanupInCompaction, CleanupIncrementally
    from forebay_state_api.keys import KeyGroupRange


NO_TIME: Final = -(1 << 62)
"""`Opening.now_us` of a subtask that was given no row and so no time: earlier than every time."""


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
