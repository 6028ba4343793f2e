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
