"""What the demo shows: a line for each micro-batch, the result, and the numbers of the run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import attrs
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from forebay_spark_runtime.demo.carried import LATE, TURNAROUND
from forebay_spark_runtime.demo.flights import MONTHS, YEAR, month_name

if TYPE_CHECKING:
    from forebay_spark_runtime.demo.check import Carried, Departure
    from forebay_spark_runtime.demo.kill import Kill
    from forebay_spark_runtime.demo.place import Place
    from forebay_spark_runtime.demo.reading import StateReading

_SHOWN: Final = 8
"""Aircraft in the table of the result."""
_HEAD: Final = f"{'batch':>6}  {'flights of':<10} {'rows':>8} {'seconds':>8} {'rows/s':>8} "
_HEAD_STATE: Final = f"{'aircraft':>9} {'state':>9}"


@attrs.frozen(kw_only=True)
class Batch:
    """One micro-batch, as Spark and the manifests report it."""

    number: int
    rows: int
    seconds: float
    state: StateReading

    @property
    def rows_per_s(self) -> float:
        """Rows of the stream per second of the whole micro-batch."""
        return self.rows / self.seconds


Show = Callable[[Batch, str], None]


class Screen:
    """Writes to the terminal; without one, plain lines to standard output."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)

    def _print(self, text: str = "", *, style: str = "") -> None:
        self._console.print(text, style=style, soft_wrap=not self._console.is_terminal)

    @contextlib.contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Say what is being waited for, as long as it takes."""
        with self._console.status(f"{what} …"):
            yield

    def title(self, place: Place, first: int, end: int) -> None:
        """What is going to happen."""
        self._print("Which aircraft carried delay from one departure to the next?", style="bold")
        months = month_name(first)
        if end > first + 1:
            months += f" to {month_name(end - 1)}"
        self._print(f"Flights from New York, {months}, a month per micro-batch.")
        if end > MONTHS:
            self._print(f"(There is a year of flights, {YEAR}; it comes again under later dates.)")
        self._print(f"Everything is kept in {place.root}")

    def restoring(self, state: StateReading, months: int, parallelism: int) -> None:
        """What an earlier run has left."""
        self._print()
        self._print(
            f"Restored version {state.version}: {state.keys:,} aircraft, {_bytes(state.size)}, "
            f"as of the end of {month_name(months - 1)}.",
            style="green",
        )
        if state.subtasks != parallelism:
            self._print(
                f"Rescale: the state of {state.subtasks} subtask(s) is opened by {parallelism}; "
                "no file is rewritten.",
                style="green",
            )

    @contextlib.contextmanager
    def streaming(self, months: int) -> Iterator[Show]:
        """Show micro-batches as they end."""
        self._print()
        self._print(_HEAD + _HEAD_STATE, style="dim")
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total} months"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        ) as progress:
            task = progress.add_task("first micro-batch: starting the workers", total=months)

            def show(batch: Batch, upcoming: str) -> None:
                self._print(_line(batch))
                progress.update(task, advance=1, description=f"streaming {upcoming}")

            yield show

    def result(
        self, carried: Sequence[Carried], flights: Sequence[Departure], airlines: Mapping[str, str]
    ) -> None:
        """The aircraft with the longest chains, and the first of them in words."""
        longest = _longest(carried)
        totals = {row.tailnum: row.total for row in carried}
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("aircraft", no_wrap=True)
        table.add_column("airline", no_wrap=True)
        for name in ("departures", "minutes", "ended", "total"):
            table.add_column(name, justify="right", no_wrap=True)
        for row in longest[:_SHOWN]:
            last = flights[row.sequence]
            ended = f"{last.departure:%d %b %Y}"
            numbers = f"{row.legs}", f"{row.minutes}", ended, f"{totals[row.tailnum]:,}"
            table.add_row(row.tailnum, airlines[last.carrier], *numbers)
        self._print()
        self._print("The longest chains of carried delay", style="bold")
        self._console.print(Padding(table, (0, 0, 0, 2)))
        self._print(
            f"Delay is carried when an aircraft arrived {LATE} minutes late or more and left "
            f"{LATE} or more late again within {TURNAROUND.total_seconds() / 3600:.0f} hours; the "
            "smaller of the two is what it carried. 'total' counts all chains of the aircraft.",
            style="dim",
        )
        if longest:
            self._print(_in_words(longest[0], carried, flights, airlines))

    def numbers(self, batches: Sequence[Batch], restored: StateReading | None) -> None:
        """The numbers of the run."""
        rows = sum(batch.rows for batch in batches)
        warm = batches[1:] or batches
        speed = sum(batch.rows for batch in warm) / sum(batch.seconds for batch in warm)
        last, first = batches[-1].state, batches[0].state
        facts = {
            "rows": f"{rows:,} in {len(batches)} micro-batches",
            "rows/s": f"{speed:,.0f}, without the first micro-batch, which starts the workers",
            "keys": f"{last.keys:,} aircraft in {last.subtasks} subtask(s)",
            "state": f"{_bytes(last.size)} in version {last.version}, committed with each batch",
        }
        if restored is not None:
            facts["restore"] = (
                f"version {restored.version} opened by {first.subtasks} subtask(s) "
                f"in {first.opening_s:.3f} s; {restored.keys:,} aircraft before the first batch, "
                f"{first.keys:,} after it"
            )
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(style="bold")
        table.add_column()
        for fact in facts.items():
            table.add_row(*fact)
        self._print()
        self._console.print(table)

    def killed(self, kills: Sequence[Kill]) -> None:
        """What was killed, and what that did."""
        self._print()
        for kill in kills:
            self._print(
                f"Killed with SIGKILL in the making of version {kill.version}: worker processes "
                f"{', '.join(map(str, kill.pids))}; {len(kill.attempts)} task attempt(s) lost."
            )
        if kills:
            self._print("Spark made the lost attempts again, from the versions before.")
        else:
            missed = "No kill hit a worker that was making a version; run it again."
            self._print(missed, style="yellow")

    def checked(self, rows: int, flights: int) -> None:
        """The result is what it has to be."""
        self._print()
        self._print(
            f"Checked: the {rows:,} rows of the result are, row by row, those of an undisturbed "
            f"loop of plain Python over the same {flights:,} flights.",
            style="green",
        )

    def next_steps(self, months: int) -> None:
        """What to try next."""
        self._print()
        self._print(f"Run it again: it restores, and goes on in {month_name(months)}. Try also")
        self._print("  --parallelism 4   the same state in four subtasks")
        self._print("  --kill            kill -9 of the worker processes in the middle")
        self._print("  --fresh           from the beginning")

    def interrupted(self) -> None:
        """The user has pressed Ctrl-C."""
        self._print("Interrupted. What was committed stays: forebay demo goes on from there.")


def _line(batch: Batch) -> str:
    return (
        f"{batch.number:>6}  {month_name(batch.number):<10} {batch.rows:>8,} {batch.seconds:>8.2f} "
        f"{batch.rows_per_s:>8,.0f} {batch.state.keys:>9,} {_bytes(batch.state.size):>9}"
    )


def _bytes(count: int) -> str:
    return f"{count / 1000:,.0f} kB"


def _longest(carried: Sequence[Carried]) -> list[Carried]:
    """The longest chain of each aircraft, the longest first."""
    best: dict[str, Carried] = {}
    for row in carried:
        known = best.get(row.tailnum)
        if known is None or (row.legs, row.minutes) > (known.legs, known.minutes):
            best[row.tailnum] = row
    return sorted(best.values(), key=lambda row: (-row.legs, -row.minutes))


def _in_words(
    row: Carried,
    carried: Sequence[Carried],
    flights: Sequence[Departure],
    airlines: Mapping[str, str],
) -> str:
    chain = [
        flights[one.sequence]
        for one in carried
        if one.tailnum == row.tailnum and one.sequence <= row.sequence
    ][-row.legs :]
    stops = ", ".join(f"{leg.dest} ({leg.dep_delay} late)" for leg in chain)
    began = chain[0].departure
    return (
        f"{row.tailnum} of {airlines[chain[0].carrier]}, {began:%d %B %Y}: after a late arrival, "
        f"{row.legs} departures in a row were late: to {stops}; {row.minutes} minutes were carried."
    )
