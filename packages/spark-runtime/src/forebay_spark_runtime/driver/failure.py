"""`why`: the error of Forebay in the text of Spark's, as an exception with its fields.

Errors of workers reach the driver as text, with Spark's own lines around them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from forebay_state_api import errors
from forebay_state_api.errors import (
    AbandonedTimelineError,
    ConfigurationError,
    ForebayError,
    IncompatibleTypeError,
    Location,
)

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

TRACEBACK: Final = "\nForebay's traceback:\n"
"""Comes before the traceback below an error that is not for the job's author."""

_NAME: Final = re.compile(r"\b(?P<name>\w+(?:\.\w+)+): ")
_OTHER_LINES: Final = (
    r"\s*=== Streaming Query ===|\n\s*(?:Driver|JVM) stacktrace:|\n\s*at [\w.$]+\("
)
_SPARKS_LINES: Final = re.compile(
    # A database's error may have a SQLSTATE too, before the lines of the user's code.
    rf"(?:\s*SQLSTATE: \w+)+(?:\s*\Z|(?={_OTHER_LINES}))|{_OTHER_LINES}"
)
_LOCATION: Final = re.compile(
    r"(?:(?P<function>[\w.<>]+) \()?operator (?P<operator>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"(?:(?:, key (?P<key>.*?))?, batch (?P<batch>\d+), partition (?P<partition>[\w-]+))?",
    re.DOTALL,
)
_FIELDS: Final = {
    IncompatibleTypeError: re.compile(
        r"stored as (?P<stored>.*?), declared as (?P<declared>.*?): (?P<reason>.*)", re.DOTALL
    ),
    AbandonedTimelineError: re.compile(
        r"(?P<message>version (?P<abandoned>\S+) .* has left: (?P<newest>\S+),.*)", re.DOTALL
    ),
}
"""Classes with fields of their own, and the text in which the fields are."""

_OTHER_SOURCES: Final = re.compile(
    r"There are \[(?P<stored>\d+)\] sources in the checkpoint offsets and now there are "
    r"\[(?P<planned>\d+)\] sources requested by the query"
)


def why(failed: StreamingQuery | BaseException) -> BaseException | None:
    """Return what stopped a query: an error of Forebay as it was raised, without Spark's lines.

    :param failed: a streaming query, or the exception that one of its methods or an action on a
        bounded DataFrame raised.

    The result has the class of `forebay_state_api.errors` that the worker raised, or that is above
    it, so ``isinstance`` works; its text is the sentence that says what failed, with the lines of
    your code below it. Its `location` holds the operator, the key, the micro-batch and the
    partition, and it has no cause. If the failure has nothing to do with Forebay, the result is
    Spark's exception itself, and ``None`` for a query that has not failed.
    """
    raised = failed if isinstance(failed, BaseException) else failed.exception()
    if raised is None or isinstance(raised, ForebayError):
        return raised
    return error_in(str(raised)) or _other_sources_error(str(raised)) or raised


def error_in(text: str) -> ForebayError | None:
    """Return the first error of Forebay in a text of Spark's."""
    found = _first_in(text)
    if found is None:
        return None
    kind, rest = found
    end = _SPARKS_LINES.search(rest)
    message, _, trace = rest[: None if end is None else end.start()].partition(TRACEBACK)
    error = _rebuilt(kind, message.rstrip())
    if trace:
        error.add_note(f"{TRACEBACK.lstrip()}{trace.rstrip()}")
    error.location = _location(message)
    return error


def _other_sources_error(text: str) -> ConfigurationError | None:
    """Return the error for Spark's own, if a query has other sources than its checkpoint.

    Those of ticks are the only ones that may come and go.
    """
    found = _OTHER_SOURCES.search(text)
    if found is None:
        return None
    return ConfigurationError(
        f"the checkpoint has {found['stored']} sources, and the query {found['planned']}: a query "
        "began or ceased to have ticks=, or another source came or went. Nothing was changed or "
        "lost. Under Spark Connect, let the stopped query begin or cease to have ticks by "
        "'forebay ticks CHECKPOINT --operators N'. On classic Spark its start does that where it "
        "can, and otherwise the driver's log gives the reason. Or start the query with the sources "
        "that it had"
    )


def _first_in(text: str) -> tuple[type[ForebayError], str] | None:
    """Return the class of the first error of Forebay in a text, and the text after its name.

    The class is the one in `errors` that the error is, or is below; plugins have errors of their
    own. Only classes that this process has imported are known: the text may come from a row.
    """
    known = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in _all_below(ForebayError)}
    for found in _NAME.finditer(text):
        if (kind := known.get(found["name"])) is not None:
            public = next(base for base in kind.__mro__ if base.__module__ == errors.__name__)
            return public, text[found.end() :]
        if found["name"].startswith(f"{errors.__name__}."):  # of a newer release
            return ForebayError, text[found.end() :]
    return None


def _all_below(kind: type[ForebayError]) -> Iterator[type[ForebayError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _all_below(below)


def _rebuilt(kind: type[ForebayError], message: str) -> ForebayError:
    pattern = _FIELDS.get(kind)
    if pattern is None:
        return kind(message)
    found = pattern.fullmatch(message)
    return ForebayError(message) if found is None else kind(**found.groupdict())


def _location(message: str) -> Location | None:
    found = _LOCATION.search(message)
    if found is None:
        return None
    return Location(
        operator=ast.literal_eval(found["operator"]),
        function=found["function"],
        key=found["key"],
        batch_id=None if found["batch"] is None else int(found["batch"]),
        partition=found["partition"],
    )
