"""`Snapshot`: one pinned version of one operator's state, read from outside."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Self

from forebay_engine.versions.choosing.finality import ShownVersion, is_final
from forebay_engine.versions.choosing.pins import LEASE
from forebay_engine.versions.format.epochs import RunVersion
from forebay_engine.versions.format.namespaces import canonical_namespace, unpacked_namespace
from forebay_engine.versions.format.timer_tables import DOMAINS
from forebay_state_api.codecs import describe_type
from forebay_state_api.contract.backend import Capability
from forebay_state_api.contract.changes import Shape
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.keys import KeyGroupRange, canonical_key, key_group_of
from forebay_state_api.plugins import plugins
from forebay_state_processor.reading.arrow_tables import (
    JOIN_BYTES,
    operator_reader,
    state_reader,
    timer_reader,
)
from forebay_state_processor.reading.opened_version import OpenedVersion
from forebay_state_processor.reading.operator_state_rows import operator_state_parts
from forebay_state_processor.reading.rows import ALL, Cell, StateRow, Timer, cells_of, time_of
from forebay_state_processor.reading.stored_states import StateInfo, timer_spec
from forebay_state_processor.reading.version_choice import OperatorSource
from forebay_state_processor.reading.version_content import KEYS, VersionContent, VersionPart

if TYPE_CHECKING:
    import pyarrow as pa

    from forebay_state_api.contract.backend import Scan, StateBackend, Table

CACHE_BYTES: Final = 64 << 20
"""The default budget for what the backend keeps between look-ups."""
_THREADS: Final = 16


def snapshot_of(
    source: OperatorSource,
    chosen: ShownVersion | RunVersion,
    *,
    backend: type[StateBackend] | None = None,
    options: Mapping[str, Any] | None = None,
    cache_bytes: int = CACHE_BYTES,
    lease: timedelta = LEASE,
    show_expired: bool = False,
    part: VersionPart | None = None,
) -> Snapshot:
    """Open a version, or a part of it; a version alone may be final or not.

    ``backend`` defaults to the installed one that made it, and ``options`` to its settings.
    """
    at, final = (chosen.at, chosen.final) if isinstance(chosen, ShownVersion) else (chosen, None)
    reader = source.open(at, lease, None if part is None else part.key_groups)
    try:
        name = reader.manifests[0].backend
        made_by = backend or plugins().backend(name)
        opened = OpenedVersion(
            reader,
            made_by,
            source.options_of(made_by) if options is None else options,
            cache_bytes=cache_bytes,
            renew_every_s=lease.total_seconds() / 3,
        )
        return Snapshot(opened, source, final=final, show_expired=show_expired, part=part)
    except BaseException:
        reader.close()
        raise


class Snapshot(VersionContent):
    """One version of an operator's state, which does not change and stays until `close`.

    Records of the job's classes are shown as NamedTuples, members of enumerations by name, values
    of a job's own `Codec` as bytes, and aggregating state by its accumulators. Look-ups may come
    from several threads. Also a context manager.
    """

    def __init__(
        self,
        opened: OpenedVersion,
        source: OperatorSource,
        *,
        final: bool | None,
        show_expired: bool = False,
        part: VersionPart | None = None,
    ) -> None:
        """Created by `open_state`; ``final`` is ``None`` if that is not known yet."""
        super().__init__(opened, show_expired=show_expired, part=part)
        self.source: Final = source
        self._final = final
        self.backend: Final = opened.backend.name

    @property
    def final(self) -> bool:
        """Whether the version can no longer be replaced by a replay of its batch."""
        if self._final is None:
            at = RunVersion(version=self.version, run_key=self.run or None)
            self._final = is_final(self.source.storage, at)
        return self._final

    @property
    def batch_time(self) -> datetime | None:
        """The time of the batch that made the version; ``None`` if no subtask knew it."""
        batch_ms = max((manifest.batch_ms for manifest in self.manifests), default=0)
        if batch_ms:
            return time_of(batch_ms * 1_000)
        return None if self.now_us is None else time_of(self.now_us)

    @property
    def key_type(self) -> str | None:
        """The type of keys as text; ``None`` if no keyed state is stored."""
        return None if self.key_codec is None else describe_type(self.key_codec.description)

    def key_group_of(self, key: Any) -> int:
        """Return the key group of a key."""
        return self._placed(key)[0]

    def address_of(self, key: Any) -> Any:
        """Return a hashable value that is equal for equal keys, and for no others."""
        admitted = self._placed(key)[1]
        address = None if self.key_codec is None else self.key_codec.address
        return admitted if address is None else address(admitted)

    def get(self, state: str, key: Any, namespace: Any = None) -> Any:
        """Return the value, list or dict of a state under one key; as `get_many`."""
        return self.get_many(state, [key], namespace)[0]

    def get_many(self, state: str, keys: Sequence[Any], namespace: Any = None) -> list[Any]:
        """Return the content of a state under each of ``keys``, in order.

        Absent content is ``None``, for lists ``[]``, for maps ``{}``. A key of several columns is a
        tuple. Only the files of the keys' groups are read.
        """
        info = self.state(state)
        empty: Any = {Shape.POINT: None, Shape.LIST: [], Shape.MAP: {}}[info.shape]
        found = self.rows_of(state, keys, namespace)
        return [empty if row is None else row.value for row in found]

    def rows_of(
        self, state: str, keys: Sequence[Any], namespace: Any = None
    ) -> list[StateRow | None]:
        """Return the row of each of ``keys`` in one namespace; ``None`` for absent content."""
        info = self.state(state)
        maker = self.row_maker(info)
        where = canonical_namespace(namespace)
        asked = [self._placed(key) for key in keys]
        rows: list[StateRow | None] = [None] * len(asked)

        def look_up(batch: list[int]) -> None:
            groups = [asked[at][0] for at in batch]
            table = self.opened.table(info.spec, KeyGroupRange(min(groups), max(groups)))
            contents = _contents(info, table, where, [asked[at] for at in batch])
            for at, content in zip(batch, contents, strict=True):
                rows[at] = maker.row(Cell(asked[at][1], where, asked[at][0], content))

        batches = self._batches([group for group, _ in asked])
        if len(batches) < 2:  # noqa: PLR2004 - nothing to do side by side
            for batch in batches:
                look_up(batch)
        else:
            with ThreadPoolExecutor(_THREADS, "forebay-reader") as threads:
                list(threads.map(look_up, batches))
        return rows

    def holds(self, state: str, key: Any) -> bool:
        """Return whether a state holds anything under a key, in any namespace.

        Reads the key's group, if there is nothing in the default namespace.
        """
        if self.rows_of(state, [key])[0] is not None:
            return True
        return any(True for _ in self._rows_in_all_namespaces(state, [key]))

    def scan(
        self, state: str, *, key_groups: KeyGroupRange | None = None, namespace: Any = ALL
    ) -> Iterator[StateRow]:
        """Yield the rows of a state in no order, a page at a time.

        Needs memory for what the backend loads of one subtask's key groups. ``namespace`` is one
        namespace, or `ALL`.
        """
        info = self.state(state)
        maker = self.row_maker(info)
        for changes in self.exported(info.spec, key_groups):
            for row in maker.rows(changes):
                if namespace is ALL or row.namespace == namespace:
                    yield row

    def timers(self, *, key_groups: KeyGroupRange | None = None) -> Iterator[Timer]:
        """Yield the registered timers, in no order."""
        spec = timer_spec(self.manifests)
        if spec is None:
            return
        assert spec.user_key is not None
        original = spec.user_key.original or (lambda address: address)
        for part in self.opened.parts(key_groups or self.key_groups):
            with self.opened.scanning(part, [spec]) as backend:
                for changes in backend.table(spec).export(KEYS):
                    for cell in cells_of(changes):
                        for at_us, key, packed in map(original, cell.content):
                            yield Timer(
                                time=time_of(at_us),
                                domain=DOMAINS[cell.key[1]].value,
                                key=key,
                                namespace=unpacked_namespace(packed),
                                key_group=cell.group,
                            )

    def timer_table(self, *, key_groups: KeyGroupRange | None = None) -> pa.RecordBatchReader:
        """Return the registered timers as Arrow: ``domain`` and ``time`` of each key.

        It is empty if the operator has none. Needs pyarrow.
        """
        return timer_reader(self, self.timers(key_groups=key_groups))

    def to_arrow(
        self,
        state: str,
        *,
        flat: bool = False,
        key_groups: KeyGroupRange | None = None,
        keys: Sequence[Any] | None = None,
        namespace: Any = ALL,
    ) -> pa.RecordBatchReader:
        """Return one state as Arrow record batches; `arrow_tables` defines the columns.

        With ``flat`` lists and maps have a row per element or entry. ``keys`` are the only ones to
        show, in place of all keys of ``key_groups``: with a ``namespace`` they are looked up,
        without one their key groups are read. Needs pyarrow.
        """
        look_up = self._look_up(keys, namespace)
        return state_reader(self, state, flat=flat, key_groups=key_groups, look_up=look_up)

    def table(
        self,
        states: Sequence[str] | None = None,
        *,
        key_groups: KeyGroupRange | None = None,
        keys: Sequence[Any] | None = None,
        namespace: Any = ALL,
        join_bytes: int = JOIN_BYTES,
    ) -> pa.RecordBatchReader:
        """Return the whole operator as Arrow: a row per key and namespace, a column per state.

        ``states`` are the columns, by default all. Key groups are joined in memory, as many at a
        time as have ``join_bytes`` stored. ``keys`` and ``namespace`` as in `to_arrow`. Needs
        pyarrow.
        """
        return operator_reader(
            self,
            states=states,
            key_groups=key_groups,
            join_bytes=join_bytes,
            look_up=self._look_up(keys, namespace),
        )

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Hand `table` to whatever reads Arrow's C stream: DuckDB, Polars, pandas."""
        return self.table().__arrow_c_stream__(requested_schema)

    def operator_state(self, name: str) -> list[Any]:
        """Return each subtask's part of an operator state: a list, or a dict of broadcast state."""
        if name not in self.operator_states:
            known = ", ".join(map(repr, self.operator_states)) or "none"
            raise ConfigurationError(
                f"version {self.version} of operator {self.uid!r} has no operator state "
                f"{name!r}; its operator states: {known}"
            )
        return operator_state_parts(self.source.storage, self.manifests, name)

    def close(self) -> None:
        """Release the version. Safe to call twice."""
        self.opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Release the version, also after a failure."""
        self.close()

    def __repr__(self) -> str:
        """Show the position, and whether it is final."""
        shown = {None: "", True: ", final", False: ", provisional"}[self._final]
        return f"<Snapshot of {self.uid!r}, version {self.version}, run {self.run}{shown}>"

    def _batches(self, groups: Sequence[int]) -> list[list[int]]:
        """Divide look-ups, given by their key groups, into those that open one range together.

        A resident backend reads all of a range when it opens it, so each key group is one; others
        read what is looked up, and one range for each subtask means fewer requests.
        """
        resident = Capability.RESIDENT in self.opened.backend.capabilities
        order = sorted(range(len(groups)), key=groups.__getitem__)
        starts = [part.start for part in self.opened.parts(self.key_groups)]

        def unit(at: int) -> int:
            return groups[at] if resident else bisect_right(starts, groups[at])

        return [[*together] for _, together in groupby(order, key=unit)]

    def _look_up(
        self, keys: Sequence[Any] | None, namespace: Any
    ) -> Callable[[str], Iterable[StateRow]] | None:
        """Return the function from a state to the rows of ``keys``; ``None`` if none were given."""
        if keys is None:
            return None
        if namespace is ALL:
            return lambda state: self._rows_in_all_namespaces(state, keys)
        return lambda state: (row for row in self.rows_of(state, keys, namespace) if row)

    def _rows_in_all_namespaces(self, state: str, keys: Sequence[Any]) -> Iterator[StateRow]:
        """Yield the rows of some keys; their key groups are read, since no look-up finds all."""
        wanted = {self.address_of(key) for key in keys}
        for group in sorted({self.key_group_of(key) for key in keys}):
            for row in self.scan(state, key_groups=KeyGroupRange(group, group)):
                if self.address_of(row.key) in wanted:
                    yield row

    def _placed(self, key: Any) -> tuple[int, Any]:
        """Return the key group and the stored form of a key; `ConfigurationError` for a misfit."""
        if self.key_codec is None:
            raise ConfigurationError(
                f"version {self.version} of operator {self.uid!r} has no keyed state"
            )
        try:
            admitted = canonical_key(self.key_codec.admit(key))
            return key_group_of(admitted, self.max_parallelism), admitted
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"operator {self.uid!r} has keys of type {self.key_type}: {error}"
            ) from error


def _contents(
    info: StateInfo, table: Table, namespace: Any, cells: Sequence[tuple[int, Any]]
) -> Iterable[Any]:
    """Return the stored content of each cell, as `Cell.content`."""
    if info.shape is Shape.POINT:
        return table.get_many(namespace, cells)
    scans = [table.scan(namespace, group, key) for group, key in cells]
    if info.shape is Shape.LIST:
        return [_elements(scan) for scan in scans]
    return [dict(_elements(scan)) for scan in scans]


def _elements(scan: Scan) -> list[Any]:
    return [one for page in scan.pages(KEYS) for one in page]
