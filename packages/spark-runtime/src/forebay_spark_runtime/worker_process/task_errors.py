"""The error that ends a task, ready for Spark's worker.

The worker sends the error's text as UTF-8. It may take the cause away first, so the text is made
before: a `FunctionError` keeps the user's frames.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from forebay_state_api.errors import ForebayError, FunctionError
from forebay_state_api.user_frames import encodable

Run: TypeAlias = Callable[[Any, Iterator[Any]], Iterator[Any]]
"""What ``mapInArrow`` calls, a method."""


def ready_for_spark(run: Run) -> Run:
    """Make the text of what ``run`` raises; of what UTF-8 has no bytes for a worker would die."""

    @functools.wraps(run)
    def guarded(job: Any, batches: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from run(job, batches)
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            if text == encodable(text):
                raise
            if isinstance(error, FunctionError):
                raise FunctionError(str(error)) from None
            told = "".join(traceback.format_exception_only(error)).strip()
            raise ForebayError(told) from None

    return guarded
