"""A row of a micro-batch with what a job needs to route it."""

from __future__ import annotations

from typing import Any

import attrs


@attrs.frozen
class KeyedRow:
    """A row with its key, input and event time."""

    row: Any
    key: Any
    group: int
    side: int
    """The input that it came from."""
    at_us: int | None = None
    """The record's event time, if it has one."""
