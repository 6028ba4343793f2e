"""Versions that the janitor should have deleted long ago, by one listing."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from forebay_state_processor.observing.listing import OperatorListing

CHANGE: Final = (
    "look for warnings of the janitor in the executors' logs: it may lack the permission to "
    "delete; forebay janitor runs a pass at once"
)
"""Advice for an operator whose janitor is behind."""

_AGES: Final = 2
"""Minimum ages for which a version may be stored that the retention does not keep."""
_SLACK: Final = timedelta(minutes=10)
_HOUR: Final = timedelta(hours=1)


def janitor_backlog(listing: OperatorListing) -> str | None:
    """Return a sentence if the janitor is behind; ``None`` if not, or before its first pass.

    Versions that a pin holds do not count.
    """
    mark, newest = listing.clearing, listing.timeline.newest
    if mark is None or newest is None:
        return None
    held = {pin.version for pin in listing.pins}
    due = newest.version - mark.retention
    left = [m for m in listing.made if m.by.version < due and m.by.version not in held]
    age = newest.committed - min((one.modified for one in left), default=newest.committed)
    if age <= _AGES * mark.min_age + _SLACK:
        return None
    versions = len({one.by.version for one in left})
    return (
        f"{versions:,} versions below the retention are stored, the oldest for "
        f"{age / _HOUR:,.1f} h, although spark.forebay.janitor.min-age keeps them for "
        f"{mark.min_age / _HOUR:,.1f} h"
    )
