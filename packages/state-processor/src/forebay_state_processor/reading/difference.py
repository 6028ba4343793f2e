"""`Difference`: the rows between two versions of an operator's state, as Python objects or Arrow.

Both versions are read, one range of key groups after another; the older one's content of a range is
held in memory, as long as it fits (see `reading.bounded_passes`). So a difference takes
about as long as two scans, whatever a backend is made of, and longer where single key groups do not
fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from operator import is_, itemgetter
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from forebay_state_api.contract.changes import Shape
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.progress import SILENT, Progress
from forebay_state_processor.reading.arrow_types import ArrowType, arrow
from forebay_state_processor.reading.bounded_passes import Budget, Pass, held_in_passes
from forebay_state_processor.reading.changes import Change, Comparison, Operation
from forebay_state_processor.reading.columns import RowTable, column_of, nested_types, types_of
from forebay_state_processor.reading.history_positions import Position
from forebay_state_processor.reading.rows import StateRow, Timer
from forebay_state_processor.reading.version_content import KEYS

if TYPE_CHECKING:
    import pyarrow as pa

    from forebay_state_api.codecs import ValueCodec
    from forebay_state_processor.reading.snapshot import Snapshot
    from forebay_state_processor.reading.stored_states import StateInfo

HELD_BYTES: Final = 256 << 20
"""The memory that the older version's content may take at a time, by default."""

_MEMORY_PER_STORED: Final = 8
"""The bytes of memory that a stored byte takes as Python objects, to begin with: a guess."""


@attrs.frozen(kw_only=True)
class TimerChange:
    """A timer that one version has and the other has not."""

    operation: Operation
    """`Operation.PUT` or `Operation.REMOVED`."""
    timer: Timer


class Difference:
    """The changes from one version to another, both pinned until `close`; a context manager.

    Applied to what ``start`` shows they give what ``end`` shows.
    """

    def __init__(
        self,
        start: Position,
        end: Position,
        older: Snapshot | None,
        newer: Snapshot | None,
        *,
        held_bytes: int = HELD_BYTES,
    ) -> None:
        """Created by `ChangeFeed.between`; a side without stored state is ``None``."""
        self.start: Final = start
        self.end: Final = end
        self._older: Final = older
        self._newer: Final = newer
        self._held_bytes: Final = held_bytes

    @property
    def states(self) -> list[str]:
        """The names of the keyed states of both versions."""
        found = (one.states for one in (self._newer, self._older) if one is not None)
        return list(dict.fromkeys(name for states in found for name in states))

    @property
    def max_parallelism(self) -> int:
        """The operator's number of key groups; 0 if neither version is stored."""
        shown = self._newer or self._older
        return 0 if shown is None else shown.max_parallelism

    @property
    def key_codec(self) -> ValueCodec | None:
        """The codec of keys; ``None`` if neither version has keyed state."""
        found = (one.key_codec for one in (self._newer, self._older) if one is not None)
        return next(filter(None, found), None)

    def rows(self, state: str, *, key_groups: KeyGroupRange | None = None) -> Iterator[Change]:
        """Yield the changes of a state, in no order, except within one key and namespace."""
        compared = self._compared(state)
        hold: Callable[..., Any] = _hold
        merged: Callable[..., Iterator[Change]] = _merged
        if self._is_plain(compared):
            hold, merged = _hold_plain, _merged_plain
        older = partial(hold, self._older, compared.older)
        parts = self._parts(key_groups, held=compared.older is not None)
        for chosen, held in held_in_passes(parts, self._held_bytes, older):
            yield from merged(compared.comparison, held, self._newer, compared.newer, chosen)
            held.clear()

    def key_rows(self, state: str, key: Any, namespace: Any = None) -> list[Change]:
        """Return the changes of a state under one key, by look-ups."""
        compared = self._compared(state)
        found = [
            None if side is None or info is None else side.rows_of(state, [key], namespace)[0]
            for side, info in ((self._older, compared.older), (self._newer, compared.newer))
        ]
        return list(compared.comparison.changes(*found))

    def timers(self, *, key_groups: KeyGroupRange | None = None) -> Iterator[TimerChange]:
        """Yield the timers that were registered, and the timers that have fired or were deleted."""
        older = partial(_hold_timers, self._older)
        parts = self._parts(key_groups, held=True)
        for chosen, held in held_in_passes(parts, self._held_bytes, older):
            for timer in _timers(self._newer, chosen):
                if timer in held:
                    held.remove(timer)
                else:
                    yield TimerChange(operation=Operation.PUT, timer=timer)
            for timer in held:
                yield TimerChange(operation=Operation.REMOVED, timer=timer)
            held.clear()

    def count_keys(self, *, progress: Progress = SILENT) -> int:
        """Return the number of keys under which a state or a timer differs, in any namespace.

        Holds the addresses of a part of the key groups in memory. ``progress`` receives the parts.
        """
        codec = self.key_codec
        address = None if codec is None else codec.address
        parts = [*self._parts(None, held=True)]
        progress.stage(f"comparing with version {self.end}", len(parts))
        count = 0
        for part in parts:
            changed = (one.key for name in self.states for one in self.rows(name, key_groups=part))
            timers = (one.timer.key for one in self.timers(key_groups=part))
            keys = chain(changed, timers)
            count += len({key if address is None else address(key) for key in keys})
            progress.advance()
        return count

    def schema(self, state: str, *, old: bool = False) -> pa.Schema:
        """Return the schema of `to_arrow`."""
        return self._table(state, old=old).schema

    def to_arrow(
        self, state: str, *, old: bool = False, key_groups: KeyGroupRange | None = None
    ) -> pa.RecordBatchReader:
        """Return the changes of a state as Arrow record batches; ``old`` adds the old value.

        Columns: ``key`` (``key_1`` …), ``namespace``, ``key_group``, ``operation``, for maps
        ``user_key``, ``value`` (for lists a list), with a TTL ``written``, ``old``, and the
        position of the newer version: ``version`` and ``run``. Read it before `close`.
        """
        return self._table(state, old=old).reader(self.rows(state, key_groups=key_groups))

    def close(self) -> None:
        """Release both versions. Safe to call twice."""
        for side in (self._older, self._newer):
            if side is not None:
                side.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Release both versions, also after a failure."""
        self.close()

    def __repr__(self) -> str:
        """Show both positions."""
        return f"<Difference from {self.start} to {self.end}>"

    def _compared(self, state: str) -> _Compared:
        older, newer = (
            None if side is None else side.states.get(state) for side in (self._older, self._newer)
        )
        if older is None and newer is None:
            known = ", ".join(map(repr, self.states)) or "none"
            raise ConfigurationError(
                f"neither version {self.start} nor version {self.end} has a state {state!r}; their "
                f"states: {known}"
            )
        return _Compared.of(older, newer)

    def _is_plain(self, compared: _Compared) -> bool:
        """Return whether a state has values without TTL, under keys that are hashable."""
        codec = self.key_codec
        infos = [one for one in (compared.older, compared.newer) if one is not None]
        plain = all(one.shape is Shape.POINT and not one.has_ttl for one in infos)
        return plain and codec is not None and codec.address is None

    def _parts(self, key_groups: KeyGroupRange | None, *, held: bool) -> Iterator[KeyGroupRange]:
        """Yield ranges of key groups whose older content may fit in memory, if any is held."""
        shown = self._newer or self._older
        if shown is None:
            return
        groups = shown.max_parallelism
        if held and self._older is not None:
            size = self._older.bytes_per_group * _MEMORY_PER_STORED
            groups = max(1, int(self._held_bytes / size))
        for part in shown.opened.parts(key_groups or shown.key_groups):
            for first in range(part.start, part.end + 1, groups):
                yield KeyGroupRange(first, min(part.end, first + groups - 1))

    def _table(self, state: str, *, old: bool) -> RowTable:
        lib = arrow()
        info = self._compared(state).shown
        text = ArrowType(lib.string(), None)
        value, times = nested_types(info)
        columns = [column_of("operation", text, lambda row: row.operation.value)]
        if info.shape is Shape.MAP:
            value, user_key = types_of(info)
            times = ArrowType(lib.timestamp("us", "UTC"), None)
            assert user_key is not None
            columns.append(column_of("user_key", user_key, lambda row: row.user_key))
        columns.append(column_of("value", value, lambda row: row.value))
        if info.has_ttl:
            columns.append(column_of("written", times, lambda row: row.written))
        if old:
            columns.append(column_of("old", value, lambda row: row.old))
        version, run = self.end.version, self.end.run
        columns.append(column_of("version", ArrowType(lib.int64(), None), lambda _: version))
        columns.append(column_of("run", text, lambda _: run))
        return RowTable(self.key_codec, columns)


@attrs.frozen
class _Compared:
    """One state as both versions have it."""

    older: StateInfo | None
    newer: StateInfo | None
    comparison: Comparison

    @classmethod
    def of(cls, older: StateInfo | None, newer: StateInfo | None) -> Self:
        """Read the older version as the newer one's types, unless the TTL was switched."""
        if older is not None and newer is not None:
            if older.shape is not newer.shape:
                raise ConfigurationError(
                    f"state {newer.name!r} is of kind {older.kind} in one version and of kind "
                    f"{newer.kind} in the other, which cannot be compared"
                )
            if older.has_ttl == newer.has_ttl and len(older.spec.generations) <= len(
                newer.spec.generations
            ):
                older = attrs.evolve(older, spec=newer.spec)
        shown = newer or older
        assert shown is not None
        codecs = [(one or shown).spec.value for one in (older, newer)]
        return cls(older, newer, Comparison(shown.shape, *codecs))

    @property
    def shown(self) -> StateInfo:
        """The state whose types the rows have."""
        shown = self.newer or self.older
        assert shown is not None
        return shown


_ROW_PARTS: Final = ("key", "namespace", "value", "written")


def _hold(
    side: Snapshot | None, info: StateInfo | None, chosen: Pass, budget: Budget
) -> dict[Any, StateRow]:
    """Return address → row for the keys of a pass."""
    held: dict[Any, StateRow] = {}
    for page in _pages(side, info, chosen):
        columns = [[getattr(row, part) for row in page.values()] for part in _ROW_PARTS]
        addresses = [address for address, _ in page]
        if not all(map(is_, addresses, columns[0])):
            columns.append(addresses)
        budget.spend(*columns)
        held |= page
    return held


def _merged(
    comparison: Comparison,
    held: dict[Any, StateRow],
    side: Snapshot | None,
    info: StateInfo | None,
    chosen: Pass,
) -> Iterator[Change]:
    """Yield the changes from what is held to the other version."""
    for page in _pages(side, info, chosen):
        for at, row in page.items():
            yield from comparison.changes(held.pop(at, None), row)
    for row in held.values():
        yield from comparison.changes(row, None)


def _pages(
    side: Snapshot | None, info: StateInfo | None, chosen: Pass
) -> Iterator[dict[Any, StateRow]]:
    """Yield the keys of a pass in pages: address → row."""
    if side is None or info is None:
        return
    codec = side.key_codec
    address = None if codec is None else codec.address
    maker = side.row_maker(info)
    for changes in side.exported(info.spec, chosen.groups):
        rows = (
            ((row.key if address is None else address(row.key), row.namespace), row)
            for row in maker.rows(changes)
        )
        yield dict(chosen.of(rows, itemgetter(0)))


Points = dict[Any, dict[Any, tuple[int, Any]]]
"""Values without TTL: namespace → key → (key group, value)."""


def _hold_plain(
    side: Snapshot | None, info: StateInfo | None, chosen: Pass, budget: Budget
) -> Points:
    """Hold the content as `_hold` does, without an object for each row."""
    held: Points = {}
    for namespace, rows in _points(side, info, chosen):
        if not rows:
            continue
        if namespace not in held:
            budget.spend([namespace], [held.setdefault(namespace, {})])
        budget.spend([row[0] for row in rows], [row[2] for row in rows])
        held[namespace].update((key, (group, value)) for key, group, value in rows)
    return held


def _merged_plain(
    comparison: Comparison,
    held: Points,
    side: Snapshot | None,
    info: StateInfo | None,
    chosen: Pass,
) -> Iterator[Change]:
    """Merge as `_merged` does, without an object for each key that is the same in both versions."""
    same, changes = comparison.same, comparison.changes
    for namespace, rows in _points(side, info, chosen):
        before = held.get(namespace, {})
        for key, group, value in rows:
            old = before.pop(key, None)
            if old is None:
                yield from changes(None, _row(key, namespace, group, value))
            elif not same(old[1], value):
                newer = _row(key, namespace, group, value)
                yield from changes(_row(key, namespace, *old), newer)
    for namespace, before in held.items():
        for key, old in before.items():
            yield from changes(_row(key, namespace, *old), None)


def _points(
    side: Snapshot | None, info: StateInfo | None, chosen: Pass
) -> Iterator[tuple[Any, list[tuple[Any, int, Any]]]]:
    """Yield namespaces, each with (key, key group, value) of keys of a pass."""
    if side is None or info is None:
        return
    for changes in side.exported(info.spec, chosen.groups):
        for namespace, points in changes.points.items():
            rows = zip(points.keys, points.groups, points.values, strict=True)
            yield namespace, [*chosen.of(rows, partial(_address, namespace))]


def _address(namespace: Any, row: tuple[Any, int, Any]) -> tuple[Any, Any]:
    return row[0], namespace


def _row(key: Any, namespace: Any, group: int, value: Any) -> StateRow:
    return StateRow(key=key, namespace=namespace, key_group=group, value=value)


_TIMER_PARTS: Final = ("key", "time", "namespace")


def _hold_timers(side: Snapshot | None, chosen: Pass, budget: Budget) -> set[Timer]:
    held: set[Timer] = set()
    timers = _timers(side, chosen)
    while page := [*islice(timers, KEYS)]:
        budget.spend(*([getattr(timer, part) for timer in page] for part in _TIMER_PARTS))
        held.update(page)
    return held


def _timers(side: Snapshot | None, chosen: Pass) -> Iterator[Timer]:
    found = iter(()) if side is None else side.timers(key_groups=chosen.groups)
    return chosen.of(found, lambda timer: timer)
