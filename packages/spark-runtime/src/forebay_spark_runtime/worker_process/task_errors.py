"""Prepares the error that ends a task for Spark's worker.

The worker sends the error's text as UTF-8. It may drop the cause first, so the text is made before
that: a `FunctionError` keeps the frames of user code.
"""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from forebay_state_api.errors import ForebayError, FunctionError
from forebay_state_api.user_frames import encodable

Run: TypeAlias = Callable[[Any, Iterator[Any]], Iterator[Any]]
"""A method that ``mapInArrow`` calls."""


def ready_for_spark(run: Run) -> Run:
    """Make the errors that ``run`` raises encodable as UTF-8: others would kill the worker."""

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
            summary = "".join(traceback.format_exception_only(error)).strip()
            raise ForebayError(summary) from None

    return guarded
