"""A job that commits versions with given figures, through the versions' own code."""

from __future__ import annotations

import hashlib
from datetime import timedelta

from forebay_state_api.contract.file_names import data_name, random_id
from forebay_state_api.contract.files import StateFile
from forebay_state_api.keys import key_group_range_of
from forebay_state_api.versions.layout import Coordinates
from forebay_state_api.versions.manifest import Manifest, put_manifest
from forebay_state_api.versions.markers import put_marker


class Job:
    """Commits versions of one operator, with the figures that a test gives.

    Without a clock, objects have the time at which they are written.
    """

    def __init__(self, storage, clock=None, *, parallelism=2, max_parallelism=8):
        self.storage = storage
        self.clock = clock
        self.parallelism = parallelism
        self.max_parallelism = max_parallelism
        self.attempts = 0

    def begin(self, version, subtask, *, run="a", epoch=1):
        self.attempts += 1
        made = Coordinates(
            version=version,
            max_parallelism=self.max_parallelism,
            parallelism=self.parallelism,
            subtask=subtask,
            range=key_group_range_of(subtask, self.parallelism, self.max_parallelism),
            epoch=epoch,
            run_key=hashlib.sha256(run.encode()).hexdigest()[:16],
            attempt_id=self.attempts,
            random_id=random_id(),
        )
        put_marker(self.storage, made)
        return made

    def commit(self, made, *, metrics=None, files=1, backend="toy", **more):
        names = [data_name(made.version, "toy") for _ in range(files)]
        for name in names:
            self.storage.put(name, bytes(100))
        files = [StateFile(name=name, size=100, range=made.range) for name in names]
        manifest = Manifest(
            made=made,
            uid="op",
            backend=backend,
            parents=[],
            opened_version=made.version - 1,
            now_us=0,
            files=files,
            meta={},
            protected=more.pop("protected", ()),
            descriptions={},
            operator_state=more.pop("operator_state", {}),
            metrics={"bytes_total": 100 * len(files), **(metrics or {})},
            batch_ms=1_000 * made.version,
            **more,
        )
        put_manifest(self.storage, manifest)
        return manifest

    def version(self, version, *, seconds=10, run="a", epoch=1, **how):
        if self.clock is not None:
            self.clock.advance(timedelta(seconds=seconds))
        subtasks = range(self.parallelism)
        begun = [self.begin(version, subtask, run=run, epoch=epoch) for subtask in subtasks]
        return [self.commit(made, **how) for made in begun]

    def versions(self, first, last, **how):
        for version in range(first, last + 1):
            self.version(version, **how)
