"""Committing: the check before a manifest is written, and what goes into it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.versions.markers import list_version

if TYPE_CHECKING:
    from forebay_state_api.backend import CommittedState
    from forebay_state_api.storage import ObjectStorage
    from forebay_state_api.versions.layout import Coordinates

_WAY_OUT = (
    "something between the operator and the sink rearranges its partitions: a coalesce() or a "
    "union() on the operator's output. Put a repartition() between them, or write the output with "
    "a query of its own"
)


def check_subtask(made: Coordinates, uid: str) -> None:
    """Refuse a subtask that the operator does not have: a union shifts partition numbers."""
    if made.subtask >= made.parallelism:
        msg = (
            f"operator {uid!r} has {made.parallelism} subtask(s), but one ran as subtask "
            f"{made.subtask}: {_WAY_OUT}"
        )
        raise ConfigurationError(msg)


def check_not_committed(storage: ObjectStorage, made: Coordinates, uid: str) -> None:
    """Refuse to commit twice in one task attempt: a coalesce runs several subtasks in one task."""
    check_subtask(made, uid)
    own = list_version(storage, made.version).of_run(made.run_key)
    if any(other.by.attempt_id == made.attempt_id for other in own.manifests):
        msg = (
            f"task attempt {made.attempt_id} has already committed version {made.version} of "
            f"operator {uid!r}: {_WAY_OUT}"
        )
        raise ConfigurationError(msg)


def merged(stored: Iterable[Mapping[str, Any]], declared: Mapping[str, Any]) -> dict[str, Any]:
    """What is told of each declared state, and of those stored ones that are not declared."""
    return {name: told for one in (*stored, declared) for name, told in one.items()}


def metrics_of(committed: CommittedState) -> dict[str, Any]:
    """What a manifest tells people about its commit."""
    return {
        "keys": committed.keys,
        "bytes_total": committed.bytes_total,
        "bytes_written": committed.bytes_written,
    }
