"""Add the user's own frames to an error's text, for places where its traceback gets lost.

Spark shows the text of an error. From pyspark 4.3 on it drops the error's causes with their
tracebacks unless ``spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled`` is false.
"""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Final

SHOWN_FRAMES: Final = 20
"""The most frames shown of each traceback; the last ones are shown."""

SHOWN_CAUSES: Final = 3
"""The most causes shown of an error; the nearest ones are shown."""

_OURS: Final = frozenset(
    {
        "forebay_backend_heap",
        "forebay_backend_lsm",
        "forebay_cli",
        "forebay_compaction_ray",
        "forebay_console",
        "forebay_engine",
        "forebay_spark_runtime",
        "forebay_state_api",
        "forebay_state_processor",
        "forebay_testing",
    }
)


LIBRARIES: Final = tuple(
    path + "/"
    for name in ("stdlib", "platstdlib", "purelib", "platlib")
    if (path := sysconfig.get_path(name))
)
"""The directories of Python's own code and of installed packages."""


def encodable(text: str) -> str:
    r"""Return ``text`` with escapes such as ``\ud83d`` for characters that UTF-8 cannot encode."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def users_frames(error: BaseException) -> str:
    """Return the frames of ``error`` and its causes outside Forebay, formatted as in a traceback.

    The text begins with a line break, or is empty.
    """
    lines = _frames(error)
    for cause in _causes(error):
        frames = _frames(cause)
        if frames:
            lines += [f"caused by {type(cause).__name__}: {cause}", *frames]
    return "".join(f"\n{line}" for line in lines)


def frames_outside(error: BaseException) -> list[tuple[FrameType, int]]:
    """Return (frame, line) of each frame of ``error`` outside Forebay, the innermost one last."""
    return [frame for frame in traceback.walk_tb(error.__traceback__) if not _is_ours(frame[0])]


def users_stack(frame: FrameType) -> str:
    """Return the stack of user's code that runs, which ends with the line that called a library.

    ``frame`` is the innermost one of a thread. Returns an empty text if Forebay's own code runs, or
    code that it has called.
    """
    frames = [one for one, _ in traceback.walk_stack(frame)]
    own = [one for one in frames if not one.f_code.co_filename.startswith(LIBRARIES)]
    if not own or _is_ours(own[0]):
        return ""
    callers = frames[frames.index(own[0]) :]
    outside = [(one, one.f_lineno) for one in reversed(callers) if not _is_ours(one)]
    shown = traceback.StackSummary.extract(iter(outside[-SHOWN_FRAMES:]))
    return "".join(shown.format()).rstrip()


def _frames(error: BaseException) -> list[str]:
    shown = traceback.StackSummary.extract(iter(frames_outside(error)[-SHOWN_FRAMES:]))
    return "".join(shown.format()).splitlines()


def _is_ours(frame: FrameType) -> bool:
    """Return whether a frame is Forebay's code; its generated code has no module."""
    module = frame.f_globals.get("__name__")
    return module is None or str(module).partition(".")[0] in _OURS


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen = {id(error)}
    for _ in range(SHOWN_CAUSES):
        implied = None if error.__suppress_context__ else error.__context__
        cause = error.__cause__ or implied
        if cause is None or id(cause) in seen:
            return
        seen.add(id(cause))
        yield cause
        error = cause
