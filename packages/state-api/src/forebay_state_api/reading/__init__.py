"""Committed state as tables, for anyone: without Spark and without the job's classes.

`open_state` pins one final version of one operator and returns a `Snapshot`: look-ups, scans,
timers, operator state, and the same as Arrow. `open_feed` yields the differences between versions.
"""

from __future__ import annotations

from forebay_state_api.reading.changes import Change, Operation
from forebay_state_api.reading.difference import Difference, TimerChange
from forebay_state_api.reading.feed import ChangeFeed, open_feed
from forebay_state_api.reading.follower import Follower, FollowOptions
from forebay_state_api.reading.opening import open_state
from forebay_state_api.reading.operator_state import OperatorStateInfo
from forebay_state_api.reading.positions import START, Position
from forebay_state_api.reading.rows import ALL, StateRow, Timer
from forebay_state_api.reading.snapshot import Snapshot
from forebay_state_api.reading.stored_states import StateInfo

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
