"""Which subtask of which micro-batch runs, and what it reports once it has committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from forebay_state_api.engine.metrics import EngineMetrics
from forebay_state_api.keys import KeyGroupRange, key_group_range_of
from forebay_state_api.versions.epochs import RunIdentity

if TYPE_CHECKING:
    from forebay_state_api.versions.checkpoint import Checkpoint


@attrs.frozen(kw_only=True)
class SubtaskIdentity:
    """Which subtask of which operator, micro-batch and attempt this is."""

    uid: str
    """The operator's."""
    run: RunIdentity
    """The run of the query that the attempt belongs to."""
    batch_id: int
    subtask: int
    """From 0."""
    parallelism: int
    max_parallelism: int
    attempt_id: int
    """Unique and growing within a run: of two attempts that commit, the higher one counts."""
    attempt_number: int = 0
    """How often this task was tried before."""
    consecutive: bool = False
    """Whether every batch runs this operator, as on a stream: then none may lack its version."""
    checkpoint: Checkpoint | None = None
    """What the query's checkpoint says; ``None`` where it cannot be asked."""

    @property
    def range(self) -> KeyGroupRange:
        """The key groups that the subtask owns."""
        return key_group_range_of(self.subtask, self.parallelism, self.max_parallelism)


@attrs.frozen(kw_only=True)
class SubtaskReport:
    """What a subtask did; `Subtask.commit` gives it."""

    version: int
    """The version that was made; 0 without versions."""
    opened_version: int
    """The version that it was made of; 0 is empty."""
    manifest_id: str | None
    """Identity of the manifest; ``None`` without versions."""
    keys: int | None
    """(key, namespace) cells over all states, where the backend knows it."""
    bytes_total: int
    """Bytes of all files that the version needs."""
    bytes_written: int
    """Bytes that this commit wrote, without the manifest."""
    opening_s: float
    """Seconds from the beginning of the version until the first record could run."""
    commit_s: float
    """Seconds from the end of the last record until the version was durable."""
    metrics: EngineMetrics
    """The engine's, read after the last record."""

    @property
    def is_restored(self) -> bool:
        """Whether an earlier version was opened."""
        return self.opened_version > 0
