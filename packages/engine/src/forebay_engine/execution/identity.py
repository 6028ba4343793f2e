"""The identity of a running subtask, and its report after the commit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import attrs

from forebay_engine.versions.format.epochs import RunIdentity
from forebay_state_api.keys import KeyGroupRange, key_group_range_of
from forebay_state_api.metrics.engine import EngineMetrics

if TYPE_CHECKING:
    from forebay_engine.versions.format.checkpoint import Checkpoint


@attrs.frozen(kw_only=True)
class SubtaskIdentity:
    """Identifies a subtask: operator, micro-batch, position and attempt."""

    uid: str
    """The operator's uid."""
    run: RunIdentity
    """The query's run to which the attempt belongs."""
    batch_id: int
    subtask: int
    """The number of the subtask, from 0."""
    parallelism: int
    max_parallelism: int
    attempt_id: int
    """The attempt's id, which grows within a run: of two attempts that commit, the higher one
    counts.
    """
    attempt_number: int = 0
    """The number of earlier attempts of this task."""
    consecutive: bool = False
    """Whether every batch runs this operator, as on a stream; then each must have a version."""
    bounded: bool = False
    """Whether the run evaluates a bounded DataFrame that is no micro-batch of a stream."""
    checkpoint: Checkpoint | None = None
    """The query's checkpoint; ``None`` where it is not known."""
    query: str = ""
    """The query's id or name in idempotency keys; empty if it has none."""

    @property
    def range(self) -> KeyGroupRange:
        """The key groups that the subtask owns."""
        return key_group_range_of(self.subtask, self.parallelism, self.max_parallelism)


@attrs.frozen(kw_only=True)
class SubtaskReport:
    """A subtask's results; `Subtask.commit` returns it."""

    version: int
    """The version that was made; 0 without versions."""
    opened_version: int
    """The version that it was made from; 0 is the empty version."""
    manifest_id: str | None
    """Identity of the manifest; ``None`` without versions."""
    keys: int | None
    """The number of (key, namespace) cells in all states, if the backend knows it."""
    bytes_total: int
    """Bytes of all files that the version needs."""
    bytes_written: int
    """Bytes that this commit wrote, without the manifest."""
    opening_s: float
    """Seconds from the beginning of the version until the first record could run."""
    commit_s: float
    """Seconds from the end of the last record until the version was durable."""
    metrics: EngineMetrics
    """The engine's metrics after the last record."""
    figures: Mapping[str, float] = attrs.field(factory=dict)
    """Everything measured until the version was durable, by the keys of `KEYED` in progress events;
    unknown numbers are absent."""

    @property
    def is_restored(self) -> bool:
        """Whether an earlier version was opened."""
        return self.opened_version > 0
