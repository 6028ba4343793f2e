"""Bring a process's cached state of other subtasks up to date between batches.

A runtime may run any subtask as the next task of a process. The process's cache of that subtask is
behind by every batch since it last ran there. Catching up takes time, and is better done while no
batch waits. This only reads, and only what `StateBackend.cached_ranges` reports; the correctness of
opening a version does not depend on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from forebay_engine.versions.choosing.opening import by_attempt, clipped
from forebay_engine.versions.format.manifest import read_manifest
from forebay_engine.versions.format.markers import list_version

if TYPE_CHECKING:
    from forebay_state_api.contract.backend import Opening, StateBackend


class SiblingCaches:
    """The cached states of a committed subtask's siblings: the other subtasks in this process."""

    def __init__(
        self, backend_class: type[StateBackend], opening: Opening, version: int, run_key: str
    ) -> None:
        """``opening`` is the subtask's; ``version`` is the version that its run has made since."""
        self._backend_class: Final = backend_class
        self._opening: Final = opening
        self._version: Final = version
        self._run_key: Final = run_key
        self.path: Final = opening.path
        """The operator's directory."""
        cached = backend_class.cached_ranges(opening.path, version)
        self._behind = {groups for groups in cached if groups != opening.range}

    @property
    def behind(self) -> bool:
        """Return whether the process has outdated caches of siblings."""
        return bool(self._behind)

    def catch_up(self) -> None:
        """Update the caches of the siblings that have committed the version by now.

        Raises `StorageError` and `CorruptStateError`; the copy of such a sibling is dropped.
        """
        listing = list_version(self._opening.storage, self._version).of_run(self._run_key)
        committed = {made.by.range: made for made in by_attempt(listing)}
        for groups in self._behind & committed.keys():
            manifest = read_manifest(self._opening.storage, committed[groups].name)
            opening = attrs.evolve(
                self._opening,
                version=self._version,
                range=groups,
                parents=[clipped(manifest, groups, groups)],
            )
            self._backend_class.catch_up(opening)
            self._behind.remove(groups)
