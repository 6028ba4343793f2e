"""The settings of the heap backend, ``spark.forebay.heap.*``."""

from __future__ import annotations

import attrs

from forebay_state_api.settings import option


@attrs.frozen(kw_only=True)
class HeapOptions:
    """The settings of one opening."""

    max_deltas: int = option(
        int,
        32,
        "Most delta files after a snapshot; beyond that, small ones are folded into one.",
        minimum=2,
    )
    snapshot_factor: float = 3.0
    """A new snapshot replaces the deltas when they exceed this many times the snapshot's bytes."""
    held_bytes: int = 4 << 10
    """The manifest holds files up to this size, in place of an object, if the storage waits for
    something outside this machine."""
