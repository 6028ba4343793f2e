"""The row that takes the place of a record that failed alone."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

import attrs

from forebay_engine.isolation.checked_rows import CheckedRows
from forebay_engine.isolation.json_rows import json_of, json_of_row
from forebay_state_api.errors import (
    ForebayError,
    FunctionError,
    OutputSchemaError,
    StateAccessError,
)
from forebay_state_api.user_frames import LIBRARIES, encodable, frames_outside

DEFAULT_ERROR_LIMIT: Final = 1_000
"""Failed records that one subtask accepts in one micro-batch."""

SHOWN_FAILURES: Final = 3
"""The number of failed records that the error for too many of them names."""

_OF_A_RECORD: Final = (OutputSchemaError, StateAccessError)
"""Errors that Forebay raises about one record's code."""


@attrs.frozen(kw_only=True)
class FailedRecord:
    """A record or timer whose function failed, with ``on_error="column"``."""

    type: str
    """The class of the exception."""
    message: str
    """The exception's text."""
    method: str
    """The record method that failed, such as ``process_element2`` or ``on_timer``."""
    key: str
    """The record's key: itself if it is a text, JSON otherwise."""
    row: str | None
    """The input row as a JSON object, which Spark's ``from_json`` reads; ``None`` for a timer."""
    timer: datetime | None
    """The time of the timer; ``None`` for a row."""
    line: str | None
    """The user's line that failed, as ``file:line in function``; ``None`` if there is none."""

    def __str__(self) -> str:
        """Return one line for messages."""
        place = "" if self.line is None else f" ({self.line})"
        return f"{self.method}, key {self.key:.80}: {self.type}: {self.message:.200}{place}"

    @classmethod
    def of(cls, error: BaseException, *, method: str, key: Any, given: Any) -> FailedRecord:
        """Describe ``error``; ``given`` is the row or timer that the method was called with."""
        is_timer = isinstance(given, datetime)
        return cls(
            type=type(error).__name__,
            message=encodable(str(error)),
            method=method,
            key=encodable(key) if isinstance(key, str) else json_of(key),
            row=None if is_timer else json_of_row(given),
            timer=given if is_timer else None,
            line=line_of_user_code(error),
        )


@attrs.frozen
class ErrorRows:
    """The rows of records that fail alone, for ``on_error="column"``."""

    limit: int = DEFAULT_ERROR_LIMIT
    """Above this number of failed records in one subtask the micro-batch fails."""
    checked_rows: Callable[[], CheckedRows] = CheckedRows
    """Makes what checks and collects the rows of one subtask; by default any row fits."""


def fails_alone(error: BaseException) -> bool:
    """Return whether ``error`` is one record's; storage, damage and settings fail the batch."""
    if isinstance(error, ForebayError):
        return isinstance(error, _OF_A_RECORD)
    return isinstance(error, Exception) and not isinstance(error, MemoryError)


def too_many_failures_error(where: str, limit: int, first: list[FailedRecord]) -> FunctionError:
    """Return the error for more failed records than ``error_limit`` allows."""
    shown = "".join(f"\n  {one}" for one in first)
    return FunctionError(
        f"{where}: more than error_limit={limit} records failed in this micro-batch, so it fails "
        f"as a whole. The first of them:{shown}"
    )


def line_of_user_code(error: BaseException) -> str | None:
    """Return the innermost line of ``error`` in the user's code, or else in a library's."""
    frames = traceback.StackSummary.extract(iter(frames_outside(error)), lookup_lines=False)
    if not frames:
        return None
    own = [frame for frame in frames if not frame.filename.startswith(LIBRARIES)]
    last = (own or frames)[-1]
    return encodable(f"{last.filename}:{last.lineno} in {last.name}")
