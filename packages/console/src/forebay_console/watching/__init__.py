"""Reads what the console shows from storage, and keeps it for a moment for all viewers.

`StateDirectory` is where pages begin. Nothing here writes, except that a look-up of data pins its
version while it reads.
"""

from forebay_console.watching.directory import StateDirectory
from forebay_console.watching.operator import OperatorView, WatchedOperator

__all__ = ["OperatorView", "StateDirectory", "WatchedOperator"]
