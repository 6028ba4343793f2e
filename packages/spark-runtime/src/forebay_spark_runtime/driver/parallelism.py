"""Warns of too many subtasks: each is a task in every micro-batch, and owns key groups."""

from __future__ import annotations

import logging
from typing import Final

_log = logging.getLogger(__name__)

MANY: Final = 1_000
"""The number of subtasks above which an operator is questioned."""
_USED: Final = 0.8
"""The share of subtasks that have to be needed by the key groups."""
_said: Final[set[str]] = set()
"""Warnings that were logged in this process."""


def warn_of_parallelism(parallelism: int, max_parallelism: int, uid: str) -> None:
    """Log a warning if an operator has more subtasks than make sense; once in a process."""
    advice = advice_on(parallelism, max_parallelism)
    message = f"operator {uid!r}: {advice}"
    if advice and message not in _said:
        _said.add(message)
        _log.warning("%s", message)


def advice_on(parallelism: int, max_parallelism: int) -> str:
    """Return why ``parallelism`` makes little sense, and the cure; empty if it does."""
    if parallelism > MANY:
        return (
            f"parallelism is {parallelism}: each micro-batch runs as many tasks, and stores a "
            "manifest for each. About as many as there are cores are quickest; pass a lower "
            "parallelism= (a restart may change it)"
        )
    largest = -(-max_parallelism // parallelism)
    needed = -(-max_parallelism // largest)
    if needed < _USED * parallelism:
        return (
            f"of {max_parallelism} key groups some of the {parallelism} subtasks own {largest} and "
            f"others {largest - 1}, so that a micro-batch takes as long as with {needed}: pass "
            f"parallelism={needed}, or for new state a larger max_parallelism"
        )
    return ""
