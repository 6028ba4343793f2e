"""Committed state as tables, for anyone: without Spark and without the job's classes.

`open_state` pins one final version of one operator and returns a `Snapshot`: look-ups, scans,
timers, operator state, and the same as Arrow. `open_feed` yields the differences between versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay_state_api.lazy_names import lazy_names

if TYPE_CHECKING:
    from forebay_state_processor.reading.changes import Change, Operation
    from forebay_state_processor.reading.difference import Difference, TimerChange
    from forebay_state_processor.reading.feed import ChangeFeed, open_feed
    from forebay_state_processor.reading.follower import Follower, FollowOptions
    from forebay_state_processor.reading.history_positions import START, Position
    from forebay_state_processor.reading.operator_state_rows import OperatorStateInfo
    from forebay_state_processor.reading.rows import ALL, StateRow, Timer
    from forebay_state_processor.reading.snapshot import Snapshot
    from forebay_state_processor.reading.snapshot_or_follower import open_state
    from forebay_state_processor.reading.stored_states import StateInfo

__all__ = [
    "ALL",
    "START",
    "Change",
    "ChangeFeed",
    "Difference",
    "FollowOptions",
    "Follower",
    "Operation",
    "OperatorStateInfo",
    "Position",
    "Snapshot",
    "StateInfo",
    "StateRow",
    "Timer",
    "TimerChange",
    "open_feed",
    "open_state",
]

_HOMES: Final = {
    "forebay_state_processor.reading.changes": (
        "Change",
        "Operation",
    ),
    "forebay_state_processor.reading.difference": (
        "Difference",
        "TimerChange",
    ),
    "forebay_state_processor.reading.feed": (
        "ChangeFeed",
        "open_feed",
    ),
    "forebay_state_processor.reading.follower": (
        "Follower",
        "FollowOptions",
    ),
    "forebay_state_processor.reading.snapshot_or_follower": ("open_state",),
    "forebay_state_processor.reading.operator_state_rows": ("OperatorStateInfo",),
    "forebay_state_processor.reading.history_positions": (
        "START",
        "Position",
    ),
    "forebay_state_processor.reading.rows": (
        "ALL",
        "StateRow",
        "Timer",
    ),
    "forebay_state_processor.reading.snapshot": ("Snapshot",),
    "forebay_state_processor.reading.stored_states": ("StateInfo",),
}
"""Module → its public names, imported on first use: a command needs few of them."""

__getattr__ = lazy_names(__name__, _HOMES)
