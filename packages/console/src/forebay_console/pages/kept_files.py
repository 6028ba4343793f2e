"""Savepoints, forks and readers: they keep files beyond the newest versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from forebay_console.watching import OperatorView


def kept(operator: OperatorView) -> Mapping[str, Any]:
    """Return the values for the template."""
    found = operator.kept()
    listing = operator.listing
    return {
        **attrs.asdict(found, recurse=False),
        "data_files": listing.data_files,
        "data_bytes": listing.data_bytes,
        "live": operator.timeline.count("state_bytes"),
        "stored_versions": len(listing.timeline.versions),
        "remembered": len(operator.timeline.versions),
    }
