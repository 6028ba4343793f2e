"""Prints the demo's progress: a line for each micro-batch, the result, and the checks."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import attrs
from rich.table import Table

from forebay_cli.output import rich_console
from forebay_spark_runtime.demo.carried_delay import LATE, TURNAROUND
from forebay_spark_runtime.demo.flights import MONTHS, YEAR, month_name

if TYPE_CHECKING:
    from rich.console import Console

    from forebay_spark_runtime.demo.check import Carried, Departure
    from forebay_spark_runtime.demo.directory import DemoDirectory
    from forebay_spark_runtime.demo.kill import Kill
    from forebay_spark_runtime.demo.manifest_numbers import StateSummary

_SHOWN: Final = 8
"""Number of aircraft in the table of the result."""
_NEXT: Final = """
Run it again: it restores, and goes on in {month}. Try also
  --parallelism 4   the same state in four subtasks
  --kill            kill -9 of the worker processes in the middle
  --console         the same in the browser, live
  --fresh           from the beginning"""


@attrs.frozen(kw_only=True)
class BatchSummary:
    """One micro-batch, as Spark and the manifests report it."""

    number: int
    rows: int
    seconds: float
    state: StateSummary


class Screen:
    """Writes to the terminal; if there is none, writes plain lines to standard output."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or rich_console.console()

    def say(self, text: str = "", *, style: str = "") -> None:
        """Print one line or several."""
        self._console.print(text, style=style, soft_wrap=not self._console.is_terminal)

    def working(self, what: str) -> AbstractContextManager[object]:
        """Show the current activity until the context ends."""
        return self._console.status(f"{what} …")

    def title(self, directory: DemoDirectory, first: int, end: int) -> None:
        """Print what this run will do."""
        self.say("Which aircraft carried delay from one departure to the next?", style="bold")
        months = month_name(first) + (f" to {month_name(end - 1)}" if end > first + 1 else "")
        self.say(f"Flights from New York, {months}, a month per micro-batch.")
        if end > MONTHS:
            self.say(f"(There is one year of flights, {YEAR}; it is repeated with later dates.)")
        self.say(f"Everything is kept in {directory.root}\n")

    def watch(self, url: str) -> None:
        """Print where the console is."""
        self.say(f"Watch it in the browser: {url}\n", style="bold")

    def still_there(self, url: str) -> None:
        """Print how to end the console."""
        self.say(f"\nThe console is still at {url} Press Enter to end it.")

    def look_again(self, directory: DemoDirectory, script: Path) -> None:
        """Print how to see the same in the browser after the demo.

        ``script`` is what runs now, by its path: a clone's commands are not on the PATH.
        """
        command = _quoted(script.absolute()) if script.is_file() else "forebay"
        state = _quoted(directory.state)
        self.say(f"\nGo on looking: {command} console --state-dir {state}")

    def restoring(self, state: StateSummary, months: int, parallelism: int) -> None:
        """Print the state that an earlier run left."""
        self.say(
            f"Restored version {state.version} of an earlier run in this directory: "
            f"{state.keys:,} aircraft, {_bytes(state.size)}, as of the end of "
            f"{month_name(months - 1)}. --fresh begins again.",
            style="green",
        )
        if state.subtasks != parallelism:
            self.say(
                f"Rescale: the state of {state.subtasks} subtask(s) is opened by {parallelism}; "
                "no file is rewritten.",
                style="green",
            )

    def batch(self, batch: BatchSummary) -> None:
        """Print a completed micro-batch."""
        self.say(
            f"{month_name(batch.number)}: {batch.rows:,} flights in {batch.seconds:.2f} s; version "
            f"{batch.state.version}: {batch.state.keys:,} aircraft, {_bytes(batch.state.size)}, "
            f"{batch.state.subtasks} subtask(s), opened in {batch.state.opening_s:.3f} s"
        )

    def result(
        self, carried: Sequence[Carried], flights: Sequence[Departure], airlines: Mapping[str, str]
    ) -> None:
        """Print the aircraft with the longest chains."""
        totals = {row.tailnum: row.total for row in carried}
        table = Table(box=None, title="The longest chains of carried delay", title_justify="left")
        for name in ("aircraft", "airline"):
            table.add_column(name, no_wrap=True)
        for name in ("departures", "minutes", "ended", "total"):
            table.add_column(name, justify="right", no_wrap=True)
        for row in _longest(carried)[:_SHOWN]:
            last = flights[row.sequence]
            ended = f"{last.departure:%d %b %Y}"
            numbers = f"{row.legs}", f"{row.minutes}", ended, f"{totals[row.tailnum]:,}"
            table.add_row(row.tailnum, airlines[last.carrier], *numbers)
        self.say()
        self._console.print(table)
        self.say(
            f"Delay is carried when an aircraft arrived {LATE} minutes late or more and left "
            f"{LATE} or more late again within {TURNAROUND.total_seconds() / 3600:.0f} hours; the "
            "smaller of the two is what it carried. 'total' counts all chains of the aircraft.\n",
            style="dim",
        )

    def killed(self, kills: Sequence[Kill]) -> None:
        """Print the kills and the task attempts that they ended."""
        for kill in kills:
            self.say(
                f"Killed with SIGKILL during version {kill.version}: worker processes "
                f"{', '.join(map(str, kill.pids))}; {len(kill.attempts)} task attempt(s) lost."
            )
        if kills:
            self.say("Spark ran the lost attempts again, from the previous versions.\n")
        else:
            missed = "No kill hit a worker that was making a version; run it again.\n"
            self.say(missed, style="yellow")

    def checked(self, rows: int, flights: int, months: int) -> None:
        """Print that the result is correct, and what to try next."""
        self.say(
            f"Checked: the {rows:,} rows of the result equal, row by row, the result of a plain "
            f"Python loop over the same {flights:,} flights.",
            style="green",
        )
        self.say(_NEXT.format(month=month_name(months)))


def _quoted(path: Path) -> str:
    """Return a path for a shell, relative to the working directory if it is below that."""
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def _bytes(count: int) -> str:
    return f"{count / 1000:,.0f} kB"


def _longest(carried: Sequence[Carried]) -> list[Carried]:
    """Return the longest chain of each aircraft, the longest first."""
    best: dict[str, Carried] = {}
    for row in sorted(carried, key=lambda row: (row.legs, row.minutes)):
        best[row.tailnum] = row
    return sorted(best.values(), key=lambda row: (-row.legs, -row.minutes))
