"""Spark, as far as the protocol sees it: checkpoints, and drivers that run batches from them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING
from zlib import crc32

import attrs

from forebay_engine.versions import Checkpoint

if TYPE_CHECKING:
    from forebay_testing.simulator.actors import Actor, SimulatedProcess
    from forebay_testing.simulator.toy_query import History, Run


@attrs.frozen
class PlannedBatch:
    """A batch in the offset log: repeated, it has the same time and the same data."""

    at_ms: int
    token: str

    def ms_in(self, subtask: int) -> int:
        """Return the batch's time as a subtask learns it; one without rows does not, and has 0."""
        return self.at_ms if (crc32(self.token.encode()) + subtask) % 4 else 0


@attrs.define(eq=False)
class SparkCheckpoint:
    """A checkpoint: what its batches are, and how many of them are committed."""

    location: str
    times: Iterator[int] = attrs.field(factory=lambda: itertools.count(1))
    planned: dict[int, PlannedBatch] = attrs.field(factory=dict)
    committed: int = 0
    """The number of committed batches, and the next batch."""
    timeline: int = 0
    """How often the query went back: its source returns other data since."""

    def plan(self, batch: int) -> PlannedBatch:
        """Return a batch, as it was planned first."""
        if batch not in self.planned:
            token = f"{batch}{self.location}{self.timeline}"
            self.planned[batch] = PlannedBatch(next(self.times), token)
        return self.planned[batch]

    def history(self, version: int) -> History:
        """Return the tokens that every key group has in a version."""
        return tuple(self.planned[batch].token for batch in range(version))

    def go_back(self, to: int, *, planned: bool) -> None:
        """Forget the commits from batch ``to`` on, and the batches; with ``planned`` but it."""
        self.committed = to
        self.timeline += 1
        kept = to + planned
        self.planned = {batch: one for batch, one in self.planned.items() if batch < kept}

    def copied(self, location: str) -> SparkCheckpoint:
        """Return a copy at another place, whose open batch is planned in both."""
        return attrs.evolve(self, location=location, planned=dict(self.planned))

    def as_tasks_know_it(self) -> Checkpoint:
        """Return what the driver passes to its tasks."""
        times = {batch: one.at_ms for batch, one in self.planned.items()}
        return Checkpoint(location=self.location, times_ms=times)


@attrs.define(eq=False)
class Driver:
    """A driver: one run of the query from a checkpoint."""

    name: str
    run: Run
    checkpoint: SparkCheckpoint
    batch: int
    said: Checkpoint
    processes: list[SimulatedProcess]
    left: set[int] = attrs.field(factory=set)
    """The subtasks of the batch that have not reported a commit."""
    working: dict[Actor, int] = attrs.field(factory=dict)
    """The attempts of the batch, and their subtasks."""
    attempts: Iterator[int] = attrs.field(factory=lambda: itertools.count(1))
    failures: Counter[int] = attrs.field(factory=Counter)
    newest: int = 0
    """The newest version that the run's subtask 0 has committed."""
    alive: bool = True
    since: int = attrs.field(init=False)
    """The batch at which it began."""
    timeline: int = attrs.field(init=False)
    """The checkpoint's timeline then."""

    def __attrs_post_init__(self) -> None:
        """Remember the checkpoint as it is at the start."""
        self.since, self.timeline = self.batch, self.checkpoint.timeline

    @property
    def is_current(self) -> bool:
        """Whether the query has not gone back since the driver started."""
        return self.timeline == self.checkpoint.timeline
