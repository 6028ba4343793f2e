"""Files and metadata of a version, as backends return them and manifests store them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from forebay_state_api.keys import KeyGroupRange

__all__ = ["CommittedState", "ParentState", "StateFile"]


@attrs.frozen(kw_only=True)
class StateFile:
    """A file in a manifest, with the key groups for which it is read.

    After a rescale several manifests may name the same file, each for its own range.
    """

    name: str
    """Name below the operator's directory."""
    size: int
    """Size in bytes; checked when the file is opened."""
    range: KeyGroupRange
    meta: Mapping[str, Any] = attrs.field(factory=dict)
    """The backend's own plain data (checksum, role, chain, entry counts …)."""
    data: bytes | None = attrs.field(default=None, repr=False)
    """The content, if the manifest holds it: then no object has the name."""


@attrs.frozen(kw_only=True)
class ParentState:
    """One manifest of the opened version, already clipped to the range that is opened."""

    manifest_id: str
    """Random identity of the manifest; a cached copy is valid for exactly this identity."""
    range: KeyGroupRange
    """The part of the opened range that this parent covers."""
    whole: bool
    """Whether the parent's own range is the opened range, so that nothing was clipped."""
    files: Sequence[StateFile]
    """The parent's files, in its order."""
    meta: Mapping[str, Any]
    """`CommittedState.meta` of the parent's commit."""
    descriptions: Mapping[str, Mapping[str, Any]]
    """State name → last declared `TableSpec.description`, also of states no longer declared.

    An older file may contain values of an older, compatible type: a backend stores the description
    that its data were written with next to the data.
    """


@attrs.frozen(kw_only=True)
class CommittedState:
    """The durable result of a backend's commit; it goes into the manifest.

    It names only files that a parent named or protected, and files whose names were made for the
    version that is committed (`file_names`). The janitor relies on it: a file that the manifests of
    a version have stopped naming may be deleted, although later versions follow.
    """

    files: Sequence[StateFile]
    """All files that the version needs, oldest first within a key group."""
    meta: Mapping[str, Any] = attrs.field(factory=dict)
    """Plain data that the next opening needs."""
    protected: Sequence[str] = ()
    """Names of more files that the janitor must keep as long as the manifest exists, also if they
    are still to be written; with a ``/`` at the end all below it, such as outputs of compaction."""
    keys: int | None = None
    """Number of (key, namespace) cells in all tables, if the backend knows it."""
    keys_new: int | None = None
    """Number of cells that did not exist before, if the backend knows it."""
    keys_removed: int | None = None
    """Number of cells that were deleted, if the backend knows it."""
    bytes_total: int = 0
    """Bytes that the version occupies, in files or elsewhere. For a backend that keeps its cells in
    files, the total size of ``files``."""
    bytes_written: int = 0
    """Bytes written by this commit."""
