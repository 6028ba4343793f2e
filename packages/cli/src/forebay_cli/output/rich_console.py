"""The console on which commands draw with rich, which is why commands import it when they run."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console

from forebay_cli.output.terminal import several_lines, stream_behind

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType
    from rich.segment import Segment


class _EscapingConsole(Console):
    """A console whose text cannot move the cursor; its own control sequences pass."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=several_lines(segment.text))


def console(*, stderr: bool = False) -> Console:
    """Return the console of stdout or stderr; it escapes the text of what it draws."""
    stream = stream_behind(sys.stderr if stderr else sys.stdout)
    return _EscapingConsole(file=stream, stderr=stderr, highlight=False)
