"""Versions of one operator's tables, opened, written and committed without the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import attrs
import pytest

from forebay_engine.execution.declared_state import spec_of
from forebay_state_api.codecs import codec_for
from forebay_state_api.contract.backend import Opening, StateBackend, Table, TableSpec
from forebay_state_api.contract.files import CommittedState, ParentState
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.job.descriptors import StateDescriptor
from forebay_state_api.keys import KeyGroupRange
from forebay_testing.backends.subject import BackendSubject, NewStorage

GROUPS: Final = 8


def spec_for(descriptor: StateDescriptor, key_type: Any = str) -> TableSpec:
    """Return the spec of a state's table, for keys of a type."""
    return spec_of(descriptor, codec_for(key_type, what="the key"), "operator")[0]


class Versions:
    """The versions of one operator: each opens the one before, in a process that kept nothing."""

    def __init__(
        self,
        backend_class: type[StateBackend],
        options: Mapping[str, Any],
        storage: ObjectStorage,
        groups: int = GROUPS,
    ) -> None:
        """``storage`` is the empty folder of the operator, ``groups`` its max parallelism."""
        self._class = backend_class
        self._options = options
        self.storage = storage
        self.whole: Final = KeyGroupRange(0, groups - 1)
        self.version = 0
        self.parents: list[ParentState] = []
        """The parts of the newest version."""
        self.committed: list[CommittedState] = []
        """The backend's result for each part of the newest version."""

    def open(
        self, groups: KeyGroupRange | None = None, storage: ObjectStorage | None = None
    ) -> StateBackend:
        """Open the newest version, or a part of it, by default on the versions' own storage."""
        groups = groups or self.whole
        opening = Opening.outside_job(
            storage or self.storage,
            "operator",
            groups,
            self._options,
            version=self.version,
            parents=[part for one in self.parents for part in _clipped(one, groups)],
        )
        return self._class.open(opening)

    def commit(self, *parts: tuple[KeyGroupRange, StateBackend, Sequence[TableSpec]]) -> None:
        """Commit the parts of the next version, and close them."""
        described = {n: d for one in self.parents for n, d in one.descriptions.items()}
        self.version += 1
        made = []
        self.committed = []
        for groups, backend, specs in parts:
            state = backend.commit(self.version)
            backend.installed(f"{self.version}-{groups}")
            backend.close()
            self.committed.append(state)
            made.append(
                ParentState(
                    manifest_id=f"{self.version}-{groups}",
                    range=groups,
                    whole=True,
                    files=state.files,
                    meta=state.meta,
                    descriptions=described | {spec.name: spec.description() for spec in specs},
                )
            )
        self.parents = made

    @contextmanager
    def writing(self, *specs: TableSpec) -> Iterator[list[Table]]:
        """Open the newest version, yield its tables, and commit what was applied to them."""
        backend = self.open()
        try:
            yield [backend.table(spec) for spec in specs]
            self.commit((self.whole, backend, specs))
        finally:
            backend.close()

    @contextmanager
    def reading(
        self, *specs: TableSpec, groups: KeyGroupRange | None = None
    ) -> Iterator[list[Table]]:
        """Open the newest version, or a part of it, and yield its tables."""
        backend = self.open(groups)
        try:
            yield [backend.table(spec) for spec in specs]
        finally:
            backend.close()


def _clipped(parent: ParentState, groups: KeyGroupRange) -> list[ParentState]:
    both = parent.range.intersection(groups)
    if both is None:
        return []
    ranges = [(file, file.range.intersection(both)) for file in parent.files]
    files = [attrs.evolve(file, range=own) for file, own in ranges if own is not None]
    return [attrs.evolve(parent, range=both, whole=parent.range == groups, files=files)]


NewVersions = Callable[..., Versions]


class OverVersions(BackendSubject):
    """Tests of tables over several versions."""

    @pytest.fixture
    def new_versions(
        self,
        backend_class: type[StateBackend],
        all_options: Mapping[str, Any],
        new_storage: NewStorage,
    ) -> NewVersions:
        """Return a factory of versions of an operator; it takes the number of key groups."""

        def make(groups: int = GROUPS) -> Versions:
            return Versions(backend_class, all_options, new_storage(), groups)

        return make

    @pytest.fixture
    def versions(self, new_versions: NewVersions) -> Versions:
        """Return versions of one operator."""
        return new_versions()
