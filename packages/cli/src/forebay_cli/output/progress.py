"""Show the progress of a long command on a terminal, and nothing in a pipe."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from forebay_state_api.progress import SILENT
from forebay_state_api.progress import Progress as Reported

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

__all__ = ["shown_progress"]


@contextlib.contextmanager
def shown_progress() -> Iterator[Reported]:
    """Return a progress that is a line of stderr until the block ends, if that is a terminal.

    Print results after the block: what is printed in it goes above the line only if it is printed
    to stderr.
    """
    from forebay_cli.output.rich_console import console

    terminal = console(stderr=True)
    if not terminal.is_terminal:
        yield SILENT
        return
    with _line(terminal) as line:
        yield _Shown(line)


def _line(terminal: Console) -> Progress:
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(show_speed=True),
        TextColumn("{task.fields[counted]}"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=terminal, transient=True)


class _Shown(Reported):
    """A progress that rich draws, from a thread of its own."""

    def __init__(self, line: Progress) -> None:
        self._line = line
        self._stage: TaskID | None = None

    def stage(self, doing: str, total: int | None = None) -> None:
        if self._stage is not None:
            self._line.remove_task(self._stage)
        counted = "" if total is None else f"of {total:,}"
        self._stage = self._line.add_task(doing, total=total, counted=counted)

    def advance(self, steps: int = 1) -> None:
        if self._stage is not None:
            self._line.advance(self._stage, steps)
