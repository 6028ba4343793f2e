"""Prepares the error that ends a task for Spark's worker, which sends the error's text.

The text begins with the sentence that says what failed and where. Errors for the job's author have
the lines of the author's code below it; others have Forebay's traceback, for a report.
"""

from __future__ import annotations

import functools
import os
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeAlias

from pyspark import TaskContext

from forebay_spark_runtime.driver.failure import TRACEBACK
from forebay_state_api.errors import (
    ConfigurationError,
    ForebayError,
    FunctionError,
    OutputSchemaError,
    StateAccessError,
    StateMigrationError,
)
from forebay_state_api.user_frames import encodable

Run: TypeAlias = Callable[[Any, Iterator[Any]], Iterator[Any]]
"""A method that ``mapInArrow`` calls."""

_FOR_AUTHORS: Final = (
    ConfigurationError,
    FunctionError,
    OutputSchemaError,
    StateAccessError,
    StateMigrationError,
)

_HIDES_TRACEBACK: Final = "SPARK_HIDE_TRACEBACK"
"""With this variable, Spark's worker sends an error without a traceback in front of it: Spark's
setting ``spark.sql.execution.pyspark.udf.hideTraceback.enabled``, for one process. Older versions
of pyspark do not read it, and send the worker's own few frames first."""


def ready_for_spark(run: Run) -> Run:
    """Make the errors that ``run`` raises readable and encodable.

    An error that cannot be encoded would kill the worker.
    """

    @functools.wraps(run)
    def guarded(job: Any, batches: Iterator[Any]) -> Iterator[Any]:
        try:
            yield from run(job, batches)
        except ForebayError as error:
            raise _readable(error).with_traceback(None) from None
        except KeyboardInterrupt as error:
            raise _readable(_interrupted_error(error)).with_traceback(None) from None
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            if text == encodable(text):
                raise
            summary = "".join(traceback.format_exception_only(error)).strip()
            raise ForebayError(summary) from None

    return guarded


def _interrupted_error(error: KeyboardInterrupt) -> FunctionError:
    where = "; ".join(getattr(error, "__notes__", ())) or "the function did not say where"
    return FunctionError(
        "a worker was interrupted: the function raised KeyboardInterrupt, or its process got the "
        f"signal SIGINT (Ctrl-C), {where}"
    )


def _readable(error: ForebayError) -> ForebayError:
    """Return ``error`` with notes that say all that its traceback and its causes would.

    Spark's worker then sends it without a traceback; it ends with the task.
    """
    if TaskContext.get() is not None:
        os.environ[_HIDES_TRACEBACK] = "1"
    notes = list(getattr(error, "__notes__", ()))
    if isinstance(error, _FOR_AUTHORS):
        str(error)  # a FunctionError stores its cause's frames when its text is first made
    else:
        trace = "".join(traceback.format_exception(error))
        notes.append(f"{TRACEBACK}{trace}".strip())
    error.__notes__ = [encodable(note) for note in notes]
    return error
