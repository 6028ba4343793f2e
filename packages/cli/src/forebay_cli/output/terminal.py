r"""The terminal: text from rows and storage that may hold anything is escaped before it gets there.

Keys, values, names and errors come from outside. A control character among them would move the
cursor, write the clipboard or reorder what is read, so it is shown as ``\x1b``. Two places write to
a terminal: the streams of the process, for `click.echo`, logs and tracebacks, and `rich_console`,
whose own control sequences have to pass. Files and pipes get what was written.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any, Final, TextIO

_BIDIRECTIONAL: Final = "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_SURROGATES: Final = "\ud800-\udfff"
_IN_LINES: Final = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_BIDIRECTIONAL}{_SURROGATES}]")
_IN_A_LINE: Final = re.compile(rf"[\x00-\x1f\x7f-\x9f{_BIDIRECTIONAL}{_SURROGATES}]")

_RESET: Final = "\x1b[0m"
"""The reset that colorama, which Ray imports, writes at exit. Commands write whole lines."""


def one_line(text: str) -> str:
    r"""Return text as it is shown in one line: with escapes such as ``\x1b`` and ``\n``."""
    return _IN_A_LINE.sub(_escape, text)


def several_lines(text: str) -> str:
    """Return text as `one_line` does, but with its line breaks and tabs."""
    return _IN_LINES.sub(_escape, text)


def _escape(character: re.Match[str]) -> str:
    return character[0].encode("unicode_escape").decode()


def stream_behind(stream: Any) -> Any:
    """Return the stream itself of a guarded one."""
    return stream.terminal if isinstance(stream, _Guarded) else stream


def guard_streams() -> None:
    """Let stdout and stderr escape what a terminal would obey, until the process ends.

    In files and pipes only what their encoding lacks is escaped, such as halves of surrogate pairs.
    """
    sys.stdout, sys.stderr = _guarded(sys.stdout), _guarded(sys.stderr)


def _guarded(stream: Any) -> Any:
    if stream is None or isinstance(stream, _Guarded):
        return stream
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="backslashreplace")
    return _Guarded(stream) if stream.isatty() else stream


class _Guarded:
    """A terminal's stream that escapes control characters.

    It has no ``buffer``: click would write UTF-8 there, past the escapes, if the encoding is ASCII.
    """

    def __init__(self, terminal: TextIO) -> None:
        self.terminal: Final = terminal

    def write(self, text: str) -> int:
        self.terminal.write(text if text == _RESET else several_lines(text))
        return len(text)

    def writelines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.write(text)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":
            raise AttributeError(name)
        return getattr(self.terminal, name)
