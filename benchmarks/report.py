"""Shared output of all benchmarks: targets, medians with their spread, tables, JSON, README."""

from __future__ import annotations

import functools
import json
import os
import platform
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import attrs
import click
from rich.console import Console
from rich.markdown import Markdown

README: Final = Path(__file__).with_name("README.md")
PACKAGES: Final = (
    "forebay-state-api",
    "forebay-engine",
    "forebay-backend-heap",
    "forebay-backend-lsm",
    "forebay-compaction-ray",
    "forebay-spark-runtime",
    "pyspark",
    "pyarrow",
)


@attrs.frozen(kw_only=True)
class Line:
    """One measured ratio or time, with its target."""

    what: str
    """The compared subjects, as shown in the table."""
    values: Sequence[float]
    """One value for each pair or repetition."""
    bound: float
    at_least: bool
    """The median must not fall below ``bound``; otherwise it must not rise above it."""
    unit: str = "x"
    detail: str = ""
    """The figures from which the ratio is computed."""
    decimals: int = 2
    """Decimals that are shown of the values."""

    @property
    def median(self) -> float:
        """The median, which is compared with the target."""
        return statistics.median(self.values)

    @property
    def met(self) -> bool:
        """Return whether the target is met."""
        return self.median >= self.bound if self.at_least else self.median <= self.bound

    def cells(self) -> list[str]:
        """Return the line's cells in the table."""
        sign = "≥" if self.at_least else "≤"
        median, low, high = (
            f"{value:.{self.decimals}f}"
            for value in (self.median, min(self.values), max(self.values))
        )
        return [
            self.what,
            f"**{median}** {self.unit}",
            f"{low} to {high}",
            f"{sign} {self.bound:g} {self.unit}",
            "pass" if self.met else "**fail**",
            self.detail,
        ]


HEADER: Final = ["what", "median", "spread", "target", "", "figures behind it"]


def table(rows: Iterable[Sequence[str]], header: Sequence[str]) -> str:
    """Format a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def lines_table(lines: Iterable[Line]) -> str:
    """Format measured lines with their targets as a table."""
    return table((line.cells() for line in lines), HEADER)


def as_data(line: Line) -> dict[str, Any]:
    """Return a line as plain data for the JSON file."""
    return {**attrs.asdict(line), "median": line.median, "met": line.met}


def environment() -> dict[str, str]:
    """Return the machine and the versions on which the figures were measured."""
    found = {"Python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "from the source tree"
    return {"processor": _processor(), "cores": str(os.cpu_count()), **found}


def environment_text() -> str:
    """Return `environment` as one sentence."""
    parts = [f"{name} {value}" for name, value in environment().items()]
    return "Measured on: " + ", ".join(parts) + "."


@attrs.frozen(kw_only=True)
class Result:
    """The figures of one command."""

    lines: Sequence[Line]
    notes: Sequence[str] = ()
    """Tables and text below the lines."""
    data: Mapping[str, Any] = attrs.field(factory=dict)
    """Additional data for the JSON file."""
    elsewhere: Callable[[str], None] | None = None
    """Writes the text into other pages, with ``--write-readme``."""


def benchmark(section: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a command of a function that measures and returns lines, or a `Result`.

    It prints them, writes the JSON file and the README's ``section`` on request, and exits with
    status 1 if a target is missed. A function that returns ``None`` has printed its own output.
    """

    def command_of(measure: Callable[..., Any]) -> click.Command:
        @click.command()
        @click.option(
            "--json",
            "json_path",
            type=click.Path(path_type=Path),
            help="Write the figures to this file.",
        )
        @click.option(
            "--write-readme", is_flag=True, help="Write the tables to benchmarks/README.md."
        )
        @functools.wraps(measure)
        def command(*, json_path: Path | None, write_readme: bool, **options: Any) -> None:
            if write_readme and options.get("quick"):
                message = "--quick makes no figures to quote: leave out --write-readme"
                raise click.UsageError(message)
            found = measure(**options)
            if found is None:
                return
            result = found if isinstance(found, Result) else Result(lines=found)
            parts = [lines_table(result.lines), *result.notes, environment_text()]
            text = "\n\n".join(parts) + "\n"
            Console().print(Markdown(text))
            if json_path is not None:
                json_path.parent.mkdir(parents=True, exist_ok=True)
                lines = [as_data(line) for line in result.lines]
                told = {"lines": lines, "notes": list(result.notes), **result.data}
                content = {"environment": environment(), **told}
                json_path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
            if write_readme:
                write_section(README, section, text)
                if result.elsewhere is not None:
                    result.elsewhere(text)
            if not all(line.met for line in result.lines):
                raise SystemExit(1)

        return command

    return command_of


def write_section(path: Path, section: str, text: str) -> None:
    """Replace the text between the markers of ``section``; a missing marker is an error."""
    begin, end = f"<!-- {section}: begin -->\n", f"<!-- {section}: end -->\n"
    before, found, rest = path.read_text().partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        message = f"{path} has no markers for the section {section!r}"
        raise ValueError(message)
    path.write_text(f"{before}{begin}{text.strip()}\n{end}{after}")


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.machine()
