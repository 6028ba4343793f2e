"""A job that commits versions with given figures, through the versions' own code."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from forebay_engine.versions.format.layout import Coordinates
from forebay_engine.versions.format.manifest import Manifest, put_manifest
from forebay_engine.versions.format.markers import put_marker
from forebay_state_api.contract.file_names import data_name, random_id
from forebay_state_api.contract.files import StateFile
from forebay_state_api.keys import key_group_range_of

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_testing.clock import ManualClock

_FILE_BYTES: Final = 100


def coordinates(
    version: int,
    subtask: int = 0,
    parallelism: int = 1,
    max_parallelism: int = 8,
    *,
    run: str = "a",
    epoch: int = 1,
    attempt_id: int = 1,
) -> Coordinates:
    """Return the coordinates of an attempt of a run that a test names."""
    return Coordinates(
        version=version,
        max_parallelism=max_parallelism,
        parallelism=parallelism,
        subtask=subtask,
        range=key_group_range_of(subtask, parallelism, max_parallelism),
        epoch=epoch,
        run_key=hashlib.sha256(run.encode()).hexdigest()[:16],
        attempt_id=attempt_id,
        random_id=random_id(),
    )


class CommittingJob:
    """Commits versions of one operator, with the figures that a test gives.

    Without a clock, objects have the time at which they are written.
    """

    def __init__(
        self,
        storage: ObjectStorage,
        clock: ManualClock | None = None,
        *,
        parallelism: int = 2,
        max_parallelism: int = 8,
    ) -> None:
        """Commit to ``storage``, the operator's folder."""
        self.storage: Final = storage
        self.clock: Final = clock
        self.parallelism = parallelism
        self.max_parallelism: Final = max_parallelism
        self.attempts = 0

    def begin(self, version: int, subtask: int, *, run: str = "a", epoch: int = 1) -> Coordinates:
        """Write the marker of an attempt, and return its coordinates."""
        self.attempts += 1
        groups = self.parallelism, self.max_parallelism
        made = coordinates(
            version, subtask, *groups, run=run, epoch=epoch, attempt_id=self.attempts
        )
        put_marker(self.storage, made)
        return made

    def commit(
        self,
        made: Coordinates,
        *,
        metrics: Mapping[str, Any] | None = None,
        files: int = 1,
        backend: str = "toy",
        protected: Sequence[str] = (),
        operator_state: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Manifest:
        """Write files of 100 bytes and the manifest of an attempt; ``more`` is of the manifest."""
        names = [data_name(made.version, backend) for _ in range(files)]
        for name in names:
            self.storage.put(name, bytes(_FILE_BYTES))
        manifest = Manifest(
            made=made,
            uid="op",
            backend=backend,
            parents=[],
            opened_version=made.version - 1,
            now_us=0,
            files=[StateFile(name=name, size=_FILE_BYTES, range=made.range) for name in names],
            meta={},
            protected=protected,
            descriptions={},
            operator_state=operator_state or {},
            metrics={"bytes_total": _FILE_BYTES * files, **(metrics or {})},
            batch_ms=1_000 * made.version,
            **more,
        )
        put_manifest(self.storage, manifest)
        return manifest

    def version(
        self, version: int, *, seconds: float = 10, run: str = "a", epoch: int = 1, **how: Any
    ) -> list[Manifest]:
        """Commit all subtasks of a version, ``seconds`` after the one before."""
        if self.clock is not None:
            self.clock.advance(timedelta(seconds=seconds))
        subtasks = range(self.parallelism)
        begun = [self.begin(version, subtask, run=run, epoch=epoch) for subtask in subtasks]
        return [self.commit(made, **how) for made in begun]

    def versions(self, first: int, last: int, **how: Any) -> None:
        """Commit the versions from ``first`` to ``last``."""
        for version in range(first, last + 1):
            self.version(version, **how)
