"""The edited content of a version: its stored cells, with some of them replaced and others removed.

It is written part by part, by one process or by a task for each part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from forebay_engine.timers.watermark import TimerClocks
from forebay_engine.versions.commit import merged
from forebay_engine.versions.format.key_types import KeyType, key_type_of
from forebay_engine.versions.format.manifest import TTL_US, lineages_of
from forebay_engine.versions.format.operator_state_entries import OperatorStateContent
from forebay_engine.versions.format.timer_tables import BY_KEY, DIRECTORY, TIMERS
from forebay_state_api.contract.backend import Opening
from forebay_state_api.contract.changes import Changes, PointChanges
from forebay_state_api.keys import canonical_key
from forebay_state_processor.importing.subtask_part import ImportedTimer, PartWriter
from forebay_state_processor.reading.rows import cells_of
from forebay_state_processor.reading.stored_states import (
    StateInfo,
    spec_of,
    states_of_lineages,
    timer_spec_of,
)

if TYPE_CHECKING:
    from forebay_engine.versions.format.manifest import Manifest
    from forebay_engine.versions.publishing import ImportedPart
    from forebay_state_api.codecs import ValueCodec
    from forebay_state_api.contract.backend import TableSpec
    from forebay_state_api.contract.migration import Lineage
    from forebay_state_api.keys import KeyGroupRange
    from forebay_state_processor.importing.checked_tables import CheckedTables
    from forebay_state_processor.reading.snapshot import Snapshot

_KEYS: Final = 4_096


@attrs.frozen(kw_only=True)
class StoredTypes:
    """The types of all that a version has, in any subtask, as plain data that can be sent on.

    A table may bring cells of a state to a subtask that has declared nothing.
    """

    key: KeyType
    lineages: Mapping[str, Lineage]
    descriptions: Mapping[str, Mapping[str, Any]]
    generations: Mapping[str, Sequence[Mapping[str, Any]]]
    ttl_us: Mapping[str, int]

    @classmethod
    def of(cls, manifests: Sequence[Manifest]) -> Self | None:
        """Return the types of a version; ``None`` if it has no keyed state."""
        key = key_type_of(manifests)
        if key is None:
            return None
        return cls(
            key=key,
            lineages=lineages_of(manifests),
            descriptions=merged([one.descriptions for one in manifests], {}),
            generations=merged([one.generations for one in manifests], {}),
            ttl_us=merged([one.metrics.get(TTL_US, {}) for one in manifests], {}),
        )

    @property
    def key_codec(self) -> ValueCodec:
        """The codec of keys."""
        return self.key.codec()

    @property
    def states(self) -> Mapping[str, StateInfo]:
        """The keyed states by name."""
        return states_of_lineages(self.lineages, self.ttl_us)

    @property
    def timers(self) -> TableSpec | None:
        """The table of timers, if the operator has one."""
        return timer_spec_of(self.lineages)

    def without(self, names: Collection[str]) -> Self:
        """Return the types without some tables."""
        return attrs.evolve(
            self,
            lineages=_without(self.lineages, names),
            descriptions=_without(self.descriptions, names),
            generations=_without(self.generations, names),
        )


class VersionEdit:
    """The edited content of a version, or of a part of it."""

    def __init__(
        self,
        snapshot: Snapshot,
        tables: CheckedTables,
        types: StoredTypes,
        removed: frozenset[Any],
    ) -> None:
        """``types`` describe the whole version, and ``removed`` has the addresses of keys."""
        self._snapshot = snapshot
        self._tables = tables
        self._removed = removed
        # The lists of each key's timers follow from the timers: a job lists them again.
        self._types = types.without({BY_KEY} if tables.has_timers else set())
        self._timers = types.timers

    def part(self, number: int, manifest: Manifest, version: int) -> ImportedPart:
        """Write the files of one subtask, whose rows are the part ``number`` of the tables."""
        groups = manifest.made.range
        operator_state = OperatorStateContent.loaded(manifest.operator_state)
        with PartWriter(self._snapshot.opened.backend, self._opening(manifest)) as writer:
            for name, lineage in self._types.lineages.items():
                if name not in (TIMERS, DIRECTORY):
                    self._copy(writer, spec_of(lineage), groups)
            for spec, changes in self._tables.changes(number):
                writer.apply(spec, self._without_removed(changes, spec))
            if self._timers is not None:
                timers = self._timers_of(number, self._timers, groups)
                writer.add_timers(self._key, timers)
            part = writer.commit(version, manifest.made.subtask)
        return attrs.evolve(
            part,
            descriptions=self._types.descriptions,
            generations=self._types.generations,
            operator_state=manifest.operator_state,
            operator_files=[blob.name for blob in operator_state.files()],
            metrics={TTL_US: self._types.ttl_us} if self._types.ttl_us else {},
            times=self._times(manifest, part),
        )

    @cached_property
    def _key(self) -> ValueCodec:
        return self._types.key_codec

    def _times(self, manifest: Manifest, part: ImportedPart) -> Mapping[str, Any]:
        """Return the clocks of timers: the version's, with the next of new timers."""
        if not self._tables.has_timers:
            return manifest.times
        next_us = TimerClocks.loaded(part.times).next_us
        clocks = TimerClocks.loaded(manifest.times)
        return attrs.evolve(clocks, next_us=next_us, lists=False).stored()

    def _opening(self, manifest: Manifest) -> Opening:
        source = self._snapshot.source
        options = source.options_of(self._snapshot.opened.backend)
        return Opening.outside_job(source.storage, self._snapshot.uid, manifest.made.range, options)

    def _copy(self, writer: PartWriter, spec: TableSpec, groups: KeyGroupRange) -> None:
        writer.declare(spec)
        if spec.name not in self._tables.names:
            for one in self._stored(spec, groups):
                writer.apply(spec, self._without_removed(one, spec))

    def _stored(self, spec: TableSpec, groups: KeyGroupRange) -> Iterator[Changes]:
        with self._snapshot.opened.scanning(groups, [spec]) as backend:
            yield from backend.table(spec).export(_KEYS)

    def _without_removed(self, changes: Changes, spec: TableSpec) -> Changes:
        if not self._removed:
            return changes
        stays = self._stays(spec.key)
        points = {name: _points(one, stays) for name, one in changes.points.items()}
        lists = {name: _by_key(one, stays) for name, one in changes.lists.items()}
        maps = {name: _by_key(one, stays) for name, one in changes.maps.items()}
        return Changes(
            points={name: one for name, one in points.items() if one.keys},
            lists={name: one for name, one in lists.items() if one},
            maps={name: one for name, one in maps.items() if one},
        )

    def _stays(self, codec: ValueCodec) -> Callable[[Any], bool]:
        address = codec.address
        if address is None:
            return lambda key: key not in self._removed
        return lambda key: address(key) not in self._removed

    def _timers_of(
        self, number: int, spec: TableSpec, groups: KeyGroupRange
    ) -> Iterator[ImportedTimer]:
        timers = (
            self._tables.timers_of(number)
            if self._tables.has_timers
            else self._stored_timers(spec, groups)
        )
        stays = self._stays(self._key)
        for timer in timers:
            if stays(canonical_key(self._key.admit(timer.key))):
                yield timer

    def _stored_timers(self, spec: TableSpec, groups: KeyGroupRange) -> Iterator[ImportedTimer]:
        assert spec.user_key is not None
        original = spec.user_key.original or (lambda address: address)
        for changes in self._stored(spec, groups):
            for cell in cells_of(changes):
                for at_us, key, packed in map(original, cell.content):
                    yield ImportedTimer(cell.group, cell.key[1], at_us, key, packed)


def _without(entries: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    return {name: entry for name, entry in entries.items() if name not in names}


def _points(changes: PointChanges, stays: Callable[[Any], bool]) -> PointChanges:
    rows = zip(changes.keys, changes.groups, changes.values, strict=True)
    kept = [row for row in rows if stays(row[0])]
    return PointChanges(*([row[part] for row in kept] for part in range(3)))


def _by_key(changes: Mapping[Any, Any], stays: Callable[[Any], bool]) -> dict[Any, Any]:
    return {key: change for key, change in changes.items() if stays(key)}
