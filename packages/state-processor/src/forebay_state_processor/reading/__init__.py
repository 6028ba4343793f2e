"""Committed state as tables, for anyone: without Spark and without the job's classes.

`open_state` pins one final version of one operator and returns a `Snapshot`: look-ups, scans,
timers, operator state, and the same as Arrow. `open_feed` yields the differences between versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_state_api.lazy_names import import_on_first_use

if TYPE_CHECKING or not import_on_first_use(__name__):
    from forebay_state_processor.reading.changes import Change as Change, Operation as Operation
    from forebay_state_processor.reading.difference import (
        Difference as Difference,
        TimerChange as TimerChange,
    )
    from forebay_state_processor.reading.feed import (
        ChangeFeed as ChangeFeed,
        open_feed as open_feed,
    )
    from forebay_state_processor.reading.follower import (
        FollowOptions as FollowOptions,
        Follower as Follower,
    )
    from forebay_state_processor.reading.history_positions import (
        Position as Position,
        START as START,
    )
    from forebay_state_processor.reading.operator_state_rows import (
        OperatorStateInfo as OperatorStateInfo,
    )
    from forebay_state_processor.reading.rows import (
        ALL as ALL,
        StateRow as StateRow,
        Timer as Timer,
    )
    from forebay_state_processor.reading.snapshot import Snapshot as Snapshot
    from forebay_state_processor.reading.snapshot_or_follower import open_state as open_state
    from forebay_state_processor.reading.stored_states import StateInfo as StateInfo
