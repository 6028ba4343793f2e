"""Make a descriptor's state object over the backend's table."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_engine.codecs.ordered import ordered_codec
from forebay_engine.execution.guarded_table import GuardedTable, guarded
from forebay_engine.execution.read_requests import READ_THREADS, ReadRequests
from forebay_engine.isolation.journal import MISSING, put_back
from forebay_engine.isolation.journaled_states import journaled
from forebay_engine.states.answers import put_cell_under
from forebay_engine.states.base import BoundTable
from forebay_engine.states.kinds import KINDS
from forebay_engine.states.reads_in_turn import in_turn
from forebay_engine.states.ttl import with_ttl
from forebay_engine.states.ttl_cleanup import Cleanups, IncrementalSweep, counting
from forebay_state_api.codecs import ValueCodec, codec_for
from forebay_state_api.codecs.wrapping_codecs import optional_codec
from forebay_state_api.contract.backend import TableSpec
from forebay_state_api.contract.changes import ABSENT, Shape, Space
from forebay_state_api.contract.migration import continued, with_ttl_of
from forebay_state_api.errors import StateMigrationError
from forebay_state_api.keys import key_group_of

if TYPE_CHECKING:
    from forebay_engine.execution.engine_interface import StateHost
    from forebay_state_api.job.descriptors import StateDescriptor

_PARTS_PER_THREAD: Final = 4
"""Parts of a read-ahead for each thread: more than one, because parts take different times."""


class DeclaredState:
    """One state of a running function: its descriptor, its table, and its object."""

    def __init__(
        self,
        host: StateHost,
        descriptor: StateDescriptor,
        spec: TableSpec,
        codec: ValueCodec,
        sweep: IncrementalSweep | None,
    ) -> None:
        """``sweep`` is the state's incremental clean-up, if any."""
        self.descriptor = descriptor
        self.spec = spec
        self.table = host.backend.table(spec)
        self._sweep = sweep
        self._subtask_metrics = host.subtask_metrics
        kind = KINDS[descriptor.kind]
        state = kind.state if descriptor.ttl is None else with_ttl(kind.state)
        if host.journal is not None:
            state = journaled(state)
        if descriptor.ttl is not None:
            state = in_turn(state, descriptor.ttl)
        if sweep is not None and sweep.per_access:
            state = counting(state)
        self.guarded = GuardedTable(self.table, spec.name, host)
        self.state = state(host, BoundTable(descriptor, spec, self.guarded, codec))

    @property
    def reads_ahead(self) -> bool:
        """Whether it is a point state whose cells are not all in memory."""
        return self.spec.shape is Shape.POINT and not self.state.space_of(None).complete

    def unread(self, wanted: Mapping[Any, int], batch_size: int) -> list[UnreadCells]:
        """Return the cells of ``wanted`` (key → key group) that are not known yet, in batches."""
        space = self.state.space_of(None)
        unknown = [(group, key) for key, group in wanted.items() if key not in space.cells]
        return [
            UnreadCells(self, space, unknown[start : start + batch_size])
            for start in range(0, len(unknown), batch_size)
        ]

    def read_batch(self, batch: Sequence[tuple[int, Any]]) -> Sequence[Any]:
        """Return the values of ``(key group, key)`` cells. Callable from any thread."""
        started = perf_counter()
        values = self.table.get_many(None, batch)
        self._subtask_metrics.note_access(self.spec.name, perf_counter() - started, len(batch))
        return values

    def filled_pages(self, host: StateHost) -> Iterator[list[tuple[Any, int]]]:
        """Yield the keys with content in the default namespace, and their groups, page by page.

        `hand_over` may come between two pages, and the keys of a page may be written after it.
        Content that has expired does not count, and is neither renewed nor dropped.
        """
        with guarded(host.fail, "a write"):
            self.hand_over()
        with guarded(host.fail):
            pages = self.table.keys(None, host.settings.batch_size)
        while True:
            with guarded(host.fail):
                keys = next(pages, None)
                if keys is None:
                    return
                filled = self._filled(keys, host)
            yield filled

    def _filled(self, keys: Sequence[Any], host: StateHost) -> list[tuple[Any, int]]:
        groups = {key: key_group_of(key, host.context.max_parallelism) for key in keys}
        space = self.state.space_of(None)
        has_content: Iterable[bool]
        if self.spec.shape is Shape.POINT:
            if not space.complete:
                read_ahead([self], groups, host.settings.batch_size, host.scheduler.reads)
            has_content = [self._any_content([space.cells.get(key, ABSENT)]) for key in groups]
        elif space.complete:
            has_content = [self._any_content(space.cells.get(key, ())) for key in groups]
        else:
            size = host.settings.page_size
            scans = [self.table.scan(None, group, key) for key, group in groups.items()]
            has_content = host.scheduler.reads.executor().map(
                lambda scan: any(map(self._any_content, scan.pages(size))), scans
            )
        return [one for one, yes in zip(groups.items(), has_content, strict=True) if yes]

    def _any_content(self, parts: Iterable[Any] | Mapping[Any, Any]) -> bool:
        """Return whether one of the cells, elements or entries has content."""
        if isinstance(parts, Mapping):
            parts = parts.values()
        elif self.spec.shape is Shape.MAP:
            parts = (stored for _, stored in parts)
        return any(map(self.state.has_content, parts))

    def cells_held(self) -> int:
        """The number of cells in memory that `hand_over` would release."""
        return sum(len(space.cells) for space in self.state.spaces.values() if not space.complete)

    def hand_over(self, open_keys: Collection[Any] = ()) -> int:
        """Pass the writes to the table, except those under the keys of unfinished records.

        Return the number of cells that were written, or read from storage.
        """
        touched = self._touched()
        kept = self._taken_out(open_keys) if open_keys else ()
        changes = self.state.changes()
        if changes:
            self.table.apply(changes)
        for space in self.state.spaces.values():
            space.dirty.clear()
            if not space.complete:
                space.cells.clear()
        for space, key, change, cell in kept:
            space.dirty[key] = change
            put_back(space.cells, key, cell)
        return touched

    def _touched(self) -> int:
        """Return the number of cells written since the last `hand_over`, or held since."""
        spaces = self.state.spaces.values()
        return sum(
            len(space.dirty) if space.complete else max(len(space.cells), len(space.dirty))
            for space in spaces
        )

    def _taken_out(self, keys: Collection[Any]) -> list[tuple[Space, Any, Any, Any]]:
        """Remove the writes under ``keys``; return (space, key, change, cell) of each."""
        return [
            (space, key, space.dirty.pop(key), space.cells.get(key, MISSING))
            for space in self.state.spaces.values()
            for key in keys
            if key in space.dirty
        ]

    def clean_up(self, records: int, now_us: int) -> int:
        """Make the checks due after ``records``; return how many expired parts were dropped."""
        if self._sweep is None:
            return 0
        return self._sweep.run(self.table, records, getattr(self.state, "accesses", 0), now_us)


@attrs.frozen(eq=False)
class UnreadCells:
    """Cells of a point state to be fetched in one call of the backend."""

    state: DeclaredState
    space: Space
    cells: Sequence[tuple[int, Any]]
    """Key group and key of each."""

    def read(self) -> Sequence[Any]:
        """Return the cells' values. Callable from any thread."""
        return self.state.read_batch(self.cells)

    def put(self, values: Sequence[Any]) -> None:
        """Put the values into the space, except where something was written meanwhile."""
        cells, dirty = self.space.cells, self.space.dirty
        for (_, key), value in zip(self.cells, values, strict=True):
            put_cell_under(cells, dirty, key, value)


def read_ahead(
    states: Iterable[DeclaredState],
    wanted: Mapping[Any, int],
    batch_size: int,
    requests: ReadRequests,
) -> int:
    """Fetch the cells of ``wanted`` (key → key group) that the states do not know yet.

    Returns their number. Several threads read; the cells of small batches are read together,
    because to hand a call to a thread costs as much as to read a few cells.
    """
    batches = [batch for state in states for batch in state.unread(wanted, batch_size)]
    parts = [*_parts(batches, batch_size)]
    for part, answers in zip(parts, requests.executor().map(_read, parts), strict=True):
        for batch, values in zip(part, answers, strict=True):
            batch.put(values)
    return sum(len(batch.cells) for batch in batches)


def _read(part: Sequence[UnreadCells]) -> list[Sequence[Any]]:
    return [batch.read() for batch in part]


def _parts(batches: Sequence[UnreadCells], most_cells: int) -> Iterator[list[UnreadCells]]:
    """Divide batches into parts of up to ``most_cells`` cells, or of one batch."""
    most_batches = -(-len(batches) // (READ_THREADS * _PARTS_PER_THREAD))
    part: list[UnreadCells] = []
    count = 0
    for batch in batches:
        if part and (len(part) >= most_batches or count + len(batch.cells) > most_cells):
            yield part
            part, count = [], 0
        part.append(batch)
        count += len(batch.cells)
    if part:
        yield part


class TtlSwitchedError(StateMigrationError):
    """A state's TTL was switched on or off, as its descriptor allows."""


def declare(host: StateHost, descriptor: StateDescriptor) -> DeclaredState:
    """Open the table of ``descriptor`` and make its state object.

    Raises `TtlSwitchedError` if the TTL was switched and the host does not rewrite the state.
    """
    uid = host.context.operator_uid
    cleanups = Cleanups.of(descriptor, type(host.backend))
    spec, codec = spec_of(descriptor, host.key_codec, uid)
    stored = lineage = host.lineages.get(spec.name)
    if stored is not None and descriptor.switch_ttl:
        lineage = with_ttl_of(spec, stored)
    spec = cleanups.added_to(continued(spec, lineage))
    if host.by_columns and spec.shape is Shape.POINT:
        spec = attrs.evolve(spec, columns=True)
    if lineage is not stored and not host.rewrites:
        raise TtlSwitchedError(f"state {spec.name!r} has to be rewritten: its TTL was switched")
    return DeclaredState(host, descriptor, spec, codec, cleanups.sweep(descriptor.name, uid))


def spec_of(
    descriptor: StateDescriptor, key_codec: ValueCodec, uid: str
) -> tuple[TableSpec, ValueCodec]:
    """Return the spec of the backend's table, and the codec of the values that the user sees.

    The spec does not include the clean-up or the stored generations yet.
    """
    what = f"state {descriptor.name!r} of operator {uid!r}"
    kind = KINDS[descriptor.kind]
    shape = kind.shape
    codec = codec_for(descriptor.value_type, what=what)
    user_key = None
    if shape is Shape.MAP:
        codec = optional_codec(codec)
        user_key = codec_for(descriptor.key_type, what=f"user key of {what}")
        if kind.ordered:
            user_key = ordered_codec(user_key)
    spec = TableSpec(
        name=descriptor.name,
        shape=shape,
        kind=descriptor.kind,
        key=key_codec,
        value=codec,
        user_key=user_key,
        ordered=kind.ordered,
        ttl=descriptor.ttl is not None,
    )
    return spec, codec
