"""Write one subtask's part of an imported version: an empty backend, filled and committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from forebay_engine.stored.restore import fill
from forebay_engine.timers.cells import (
    LEAF_BITS,
    Directory,
    TimerCells,
    apply_directories,
    timer_specs,
)
from forebay_engine.timers.watermark import ALWAYS, NEVER, TimerClocks
from forebay_engine.versions.format.manifest import TTL_US
from forebay_engine.versions.format.timer_tables import DOMAINS
from forebay_engine.versions.publishing import ImportedPart
from forebay_state_api.contract.migration import continued, says_more

if TYPE_CHECKING:
    from forebay_state_api.codecs import ValueCodec
    from forebay_state_api.contract.backend import Opening, StateBackend, Table, TableSpec
    from forebay_state_api.contract.changes import Changes


NO_WATERMARK: Final = ALWAYS
"""The watermark of an operator that has seen no event time, in µs."""


@attrs.frozen
class ImportedTimer:
    """One timer to be stored."""

    group: int
    domain: int
    """The position of the domain in `DOMAINS`."""
    at_us: int
    key: Any
    namespace: bytes = b""
    """The namespace, as `packed_namespace` returns it."""


class PartWriter:
    """Fills an empty backend with the cells of one range of key groups; a context manager."""

    def __init__(self, backend_class: type[StateBackend], opening: Opening) -> None:
        """``opening`` is of version 0, without parents."""
        self._opening = opening
        self._backend = backend_class.open(opening)
        self._tables: dict[str, tuple[TableSpec, Table]] = {}
        self._next_us = [NEVER] * len(DOMAINS)
        self._has_timers = False

    def declare(self, spec: TableSpec) -> Table:
        """Return the table of a state, also if no cell of it is stored."""
        if spec.name not in self._tables:
            spec = spec if spec.generations else continued(spec, None)
            self._tables[spec.name] = (spec, self._backend.table(spec))
        return self._tables[spec.name][1]

    def apply(self, spec: TableSpec, changes: Changes) -> None:
        """Store cells; each key and namespace of a state comes once."""
        fill(self.declare(spec), changes)

    def add_timers(self, key: ValueCodec, timers: Iterable[ImportedTimer]) -> None:
        """Store timers; may be called once."""
        spec, directory_spec = timer_specs(key)
        cells = TimerCells(self.declare(spec), spec)
        directory = self.declare(directory_spec)
        leaves: list[set[tuple[int, int]]] = [set() for _ in DOMAINS]
        self._has_timers = True
        for timer in timers:
            leaf = timer.at_us >> LEAF_BITS
            entry: Any = (timer.at_us, timer.key, timer.namespace)
            if cells.address is not None:
                entry = cells.address(entry)
            cells.put((timer.group, timer.domain, leaf), entry)
            leaves[timer.domain].add((timer.group, leaf))
            self._next_us[timer.domain] = min(self._next_us[timer.domain], timer.at_us)
        cells.hand_over()
        groups = self._opening.range
        directories = [Directory(directory, number, groups) for number in range(len(DOMAINS))]
        for one, added in zip(directories, leaves, strict=True):
            one.update(sorted(added), ())
        apply_directories(directory, directories)

    def commit(
        self,
        version: int,
        subtask: int,
        *,
        ttl_us: Mapping[str, int] | None = None,
        now_us: int | None = None,
        watermark_us: int = NO_WATERMARK,
    ) -> ImportedPart:
        """Make the cells durable as files of ``version``, which no manifest names yet.

        ``now_us`` and ``watermark_us`` are the clocks of timers. If both are absent, and there are
        no timers, no clocks are stored.
        """
        committed = self._backend.commit(version)
        clocks = TimerClocks(
            now_us=self._opening.now_us if now_us is None else now_us,
            watermark_us=watermark_us,
            next_us=tuple(self._next_us),
        )
        has_clocks = self._has_timers or now_us is not None or watermark_us != NO_WATERMARK
        specs = [spec for spec, _ in self._tables.values()]
        return ImportedPart(
            subtask=subtask,
            range=self._opening.range,
            committed=committed,
            descriptions={spec.name: spec.description() for spec in specs},
            generations={spec.name: spec.generations for spec in specs if says_more(spec)},
            metrics={TTL_US: dict(ttl_us)} if ttl_us else {},
            times=clocks.stored() if has_clocks else {},
        )

    def close(self) -> None:
        """Release the backend; cells that were not committed are lost."""
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Release the backend, also after a failure."""
        self.close()
