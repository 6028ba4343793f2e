"""The settings of the heap backend, ``spark.forebay.heap.*``."""

from __future__ import annotations

import attrs

from forebay_state_api.settings import option


@attrs.frozen(kw_only=True)
class HeapOptions:
    """The settings in force for one opening."""

    max_deltas: int = option(
        int,
        32,
        "Delta files after a snapshot; beyond it, small ones are folded into one.",
        minimum=2,
    )
    snapshot_factor: float = 3.0
    """Deltas are replaced by a snapshot beyond this many times the snapshot's bytes."""
