"""Checks of a task attempt's position among the subtasks, and parts of its manifest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from forebay_engine.versions.format.markers import put_marker
from forebay_state_api.errors import ConfigurationError

if TYPE_CHECKING:
    from forebay_engine.versions.format.layout import Coordinates
    from forebay_state_api.contract.files import CommittedState
    from forebay_state_api.contract.object_storage import ObjectStorage

_WAY_OUT = (
    "something between the operator and the sink rearranges its partitions: a coalesce() or a "
    "union() on the operator's output. Put a repartition() between them, or write the output with "
    "a separate query"
)


def check_subtask(made: Coordinates, uid: str) -> None:
    """Refuse a subtask that the operator does not have: a union shifts partition numbers."""
    if made.subtask >= made.parallelism:
        raise ConfigurationError(
            f"operator {uid!r} has {made.parallelism} subtask(s), but one ran as subtask "
            f"{made.subtask}: {_WAY_OUT}"
        )


def mark(storage: ObjectStorage, made: Coordinates, uid: str) -> None:
    """Put the marker; refuse an attempt that has already begun this version (one request).

    A coalesce runs several subtasks in one task, each with the number and the attempt of that task.
    """
    if not put_marker(storage, made):
        raise ConfigurationError(
            f"task attempt {made.attempt_id} has already begun version {made.version} of "
            f"operator {uid!r}: {_WAY_OUT}"
        )


def merged(stored: Iterable[Mapping[str, Any]], declared: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of all declared states, and of stored states that are not declared."""
    return {name: entry for entries in (*stored, declared) for name, entry in entries.items()}


def committed_fields(
    committed: CommittedState, *, operator_files: Sequence[str], metrics: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields of a manifest that follow from its backend's commit.

    ``operator_files`` are the files of operator state. The metrics of the commit are added to
    ``metrics``.
    """
    sizes = {
        "keys": committed.keys,
        "bytes_total": committed.bytes_total,
        "bytes_written": committed.bytes_written,
    }
    return {
        "files": committed.files,
        "meta": committed.meta,
        "protected": [*committed.protected, *operator_files],
        "metrics": {**metrics, **sizes},
    }
