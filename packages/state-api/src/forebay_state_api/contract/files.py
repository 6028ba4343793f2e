"""Files and metadata of a version, as a backend names them and manifests keep them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from forebay_state_api.keys import KeyGroupRange


@attrs.frozen(kw_only=True)
class StateFile:
    """A file that a manifest names, with the key groups for which it is read.

    After a rescale the same file may be named by several manifests, each for its own range.
    """

    name: str
    """Name below the operator's directory."""
    size: int
    """Bytes; checked when the file is opened."""
    range: KeyGroupRange
    meta: Mapping[str, Any] = attrs.field(factory=dict)
    """Plain data of the backend's own (checksum, role, chain, entry counts …)."""


@attrs.frozen(kw_only=True)
class ParentState:
    """What one manifest of the opened version says, already clipped to the range being opened."""

    manifest_id: str
    """Random identity of the manifest; a cached copy is valid for exactly this identity."""
    range: KeyGroupRange
    """The part of the opened range that this parent covers."""
    whole: bool
    """The parent's own range is the opened range: nothing was clipped."""
    files: Sequence[StateFile]
    """In the order in which the parent named them."""
    meta: Mapping[str, Any]
    """`CommittedState.meta` of the parent's commit."""
    descriptions: Mapping[str, Mapping[str, Any]]
    """State name → `TableSpec.description` as it was last declared, also of states that were not.

    A file that was written earlier may hold values of an older, compatible type: a backend stores
    with its data how they were written.
    """


@attrs.frozen(kw_only=True)
class CommittedState:
    """What a backend made durable for one version; goes into the manifest."""

    files: Sequence[StateFile]
    """All files that the version needs, oldest first within a key group."""
    meta: Mapping[str, Any] = attrs.field(factory=dict)
    """Plain data that the next opening needs."""
    protected: Sequence[str] = ()
    """Names of further files that the janitor must keep while the manifest lives; one that ends in
    ``/`` stands for all files below it, such as what a compaction that is under way writes."""
    keys: int | None = None
    """Number of (key, namespace) cells over all tables, where the backend knows it."""
    bytes_total: int = 0
    """Bytes of all files named in ``files``."""
    bytes_written: int = 0
    """Bytes that this commit wrote."""
