"""Models one operator's versions: openings and commits of toy files, without Spark.

It keeps the content of manifests. `Chain.commit` is a successful micro-batch of one subtask;
`Chain.rescale` assigns the key groups to other subtasks, as the versions of `forebay_state_api` do.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import attrs
import pytest

from forebay_backend_lsm.compactions import CompactedFiles, Compactions
from forebay_backend_lsm.options import LsmOptions
from forebay_state_api.contract.backend import Opening
from forebay_state_api.contract.compaction_job import CompactionJob
from forebay_state_api.contract.file_names import data_name, random_id
from forebay_state_api.contract.files import ParentState, StateFile
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.storage.opening import open_storage
from forebay_testing import ImmediateCompaction

from .toy import Cells, ToyCompactor, visible, write_cells

OPERATOR = "q/u"
MINUTE_US = 60_000_000
START_US = 1_000 * MINUTE_US
RULES = LsmOptions(max_runs=4, target_file_bytes=1_000)


@attrs.frozen(kw_only=True)
class Committed:
    """The content of one manifest."""

    version: int
    range: KeyGroupRange
    files: Sequence[StateFile]
    meta: Mapping[str, Any]
    protected: Sequence[str] = ()
    id: str = attrs.field(factory=random_id)

    def opened_by(self, groups: KeyGroupRange) -> ParentState | None:
        """Return the part that a subtask of ``groups`` opens."""
        part = self.range.intersection(groups)
        if part is None:
            return None
        cut = ((file, file.range.intersection(part)) for file in self.files)
        return ParentState(
            manifest_id=self.id,
            range=part,
            whole=part == self.range == groups,
            files=[attrs.evolve(file, range=own) for file, own in cut if own],
            meta=self.meta,
            descriptions={},
        )


class Chain:
    """The manifests of the newest version, and the process that commits the next one."""

    def __init__(self, rules: LsmOptions, storage: ObjectStorage | None = None) -> None:
        self.rules = rules
        self.root = storage or open_storage(f"memory://{uuid.uuid4().hex}")
        self.storage = self.root.child(OPERATOR)
        self.compactor = ToyCompactor()
        self.service = self.new_service()
        self.now_us = START_US
        self.run = "the first run"
        everything = KeyGroupRange(0, 7)
        self.newest = [Committed(version=0, range=everything, files=(), meta={})]
        self.ranges = [everything]

    @property
    def version(self) -> int:
        """The newest version."""
        return self.newest[0].version

    def new_service(self) -> ImmediateCompaction:
        """Return the service of a new process; the test runs the jobs."""
        return ImmediateCompaction(self.root, lambda _: self.compactor, hold=True)

    def opening(self, groups: KeyGroupRange, **more: Any) -> Opening:
        """Return the opening of a subtask's backend."""
        parents = [p for one in self.newest if (p := one.opened_by(groups)) is not None]
        given: dict[str, Any] = {
            "storage": self.storage,
            "path": self.storage.url,
            "uid": "u",
            "version": self.version,
            "range": groups,
            "parents": parents if self.version else [],
            "options": {},
            "now_us": self.now_us,
            "cache_bytes": 0,
            "compaction": self.service,
            "operator": OPERATOR,
            "run": self.run,
        }
        return Opening(**{**given, **more})

    def opened(self, groups: KeyGroupRange | None = None, **more: Any) -> Compactions:
        """Return the compactions of a subtask that has just opened the newest version."""
        opening = self.opening(groups or self.ranges[0], **more)
        return Compactions(opening, self.rules, self.compactor)

    def write(self, cells: Mapping[tuple[int, str], Any], groups: KeyGroupRange) -> list[StateFile]:
        """Write the file of one micro-batch; write none if there are no cells."""
        if not cells:
            return []
        name = data_name(self.version + 1, "run")
        return [write_cells(self.storage, name, cells, groups)]

    def committed(self, opened: Compactions, groups: KeyGroupRange, cells: Cells) -> Committed:
        """Return the manifest of one attempt; `Compactions.installed` submits its jobs."""
        own = {cell: value for cell, value in cells.items() if cell[0] in groups}
        made = opened.commit(self.version + 1, self.write(own, groups), options={})
        return self.manifest(made, groups)

    def manifest(self, made: CompactedFiles, groups: KeyGroupRange) -> Committed:
        return Committed(
            version=self.version + 1,
            range=groups,
            files=made.files,
            meta=made.meta,
            protected=made.protected,
        )

    def commit(self, cells: Cells | None = None) -> None:
        """Run one micro-batch of all subtasks."""
        made = []
        for groups in self.ranges:
            opened = self.opened(groups)
            made.append(self.committed(opened, groups, cells or {}))
            opened.installed()
        self.newest = made

    def attempt(self, cells: Cells | None = None) -> tuple[Compactions, Committed]:
        """Run an attempt of subtask 0, whose manifest is not the version yet."""
        opened = self.opened()
        return opened, self.committed(opened, self.ranges[0], cells or {})

    def install(self, attempt: tuple[Compactions, Committed]) -> None:
        """Make an attempt the version; its process continues."""
        self.newest = [attempt[1]]
        attempt[0].installed()

    def other_process(self) -> None:
        """Continue in a process that knows of no job."""
        self.service = self.new_service()

    def run_jobs(self) -> None:
        """Run all jobs that this process was given and has not run."""
        for job in self.service.submitted:
            if not self.service.poll(job.id).phase.ended:
                self.service.run(job)

    def rescale(self, parallelism: int) -> None:
        """Let other subtasks commit the next version."""
        bounds = [8 * n // parallelism for n in range(parallelism + 1)]
        self.ranges = [KeyGroupRange(start, end - 1) for start, end in pairwise(bounds)]

    def content(self) -> Cells:
        """Return the content of the newest version."""
        cells: Cells = {}
        for one in self.newest:
            cells |= visible(self.storage, one.files)
        return cells

    def pending(self) -> list[str]:
        """Return the ids of the jobs that the newest version names."""
        plain = [
            p for one in self.newest for p in one.meta.get("compaction", {}).get("pending", ())
        ]
        return [pending["job"]["id"] for pending in plain]


def cell(number: int, value: object = None) -> Cells:
    return {(number % 8, f"k{number}"): value}


def until_pending(chain: Chain) -> CompactionJob:
    """Commit until a job is submitted; return the job."""
    for number in range(20):
        chain.commit(cell(number, number))
        if chain.service.submitted:
            return chain.service.submitted[-1]
    pytest.fail("nothing was submitted")
