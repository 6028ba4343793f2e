"""The settings of the heap backend, ``spark.forebay.heap.*``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from forebay_state_api.settings import Setting

SETTINGS: Final[Mapping[str, Setting]] = {
    setting.name: setting
    for setting in (
        Setting(
            "max-deltas",
            int,
            32,
            "Delta files after a snapshot; beyond it, small ones are folded into one.",
            minimum=2,
        ),
        Setting(
            "snapshot-factor",
            float,
            3.0,
            "A snapshot is written when the deltas' bytes exceed this many times the snapshot's.",
            minimum=0,
        ),
    )
}
"""Name → declaration, as `StateBackend.options` wants it."""


@attrs.frozen(kw_only=True)
class HeapOptions:
    """The settings in force for one opening."""

    max_deltas: int
    """Upper bound of the delta files that a version names."""
    snapshot_factor: float
    """Deltas are replaced by a snapshot beyond this many times the snapshot's bytes."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> HeapOptions:
        """Take what is given, and the default of what is not."""
        value = {name: given.get(name, s.default_value()) for name, s in SETTINGS.items()}
        return cls(max_deltas=value["max-deltas"], snapshot_factor=value["snapshot-factor"])
