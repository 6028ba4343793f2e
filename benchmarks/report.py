"""What all benchmarks share: targets, medians with their spread, tables, JSON, the README."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import attrs
from rich.console import Console
from rich.markdown import Markdown

README: Final = Path(__file__).with_name("README.md")
PACKAGES: Final = (
    "forebay-state-api",
    "forebay-backend-heap",
    "forebay-backend-lsm",
    "forebay-compaction-ray",
    "forebay-spark-runtime",
    "pyspark",
    "pyarrow",
)


@attrs.frozen(kw_only=True)
class Line:
    """One measured ratio, or one measured time, beside the target it has to meet."""

    what: str
    """What is compared, as the table says it."""
    values: Sequence[float]
    """One for each pair or repetition."""
    bound: float
    at_least: bool
    """The median must not fall below ``bound``; otherwise it must not rise above it."""
    unit: str = "x"
    detail: str = ""
    """The figures behind the ratio."""

    @property
    def median(self) -> float:
        """What is held against the target."""
        return statistics.median(self.values)

    @property
    def met(self) -> bool:
        """Whether the target is met."""
        return self.median >= self.bound if self.at_least else self.median <= self.bound

    def cells(self) -> list[str]:
        """Give the line's cells in the table."""
        sign = "≥" if self.at_least else "≤"
        return [
            self.what,
            f"**{self.median:.2f}** {self.unit}",
            f"{min(self.values):.2f} to {max(self.values):.2f}",
            f"{sign} {self.bound:g} {self.unit}",
            "pass" if self.met else "**fail**",
            self.detail,
        ]


HEADER: Final = ["what", "median", "spread", "target", "", "figures behind it"]


def table(rows: Iterable[Sequence[str]], header: Sequence[str]) -> str:
    """Lay out a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def lines_table(lines: Iterable[Line]) -> str:
    """Lay out measured lines with their targets."""
    return table((line.cells() for line in lines), HEADER)


def as_data(line: Line) -> dict[str, Any]:
    """Give a line as plain data for the JSON file."""
    return {**attrs.asdict(line), "median": line.median, "met": line.met}


def environment() -> dict[str, str]:
    """Say on what the figures were measured."""
    found = {"Python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "from the source tree"
    return {"processor": _processor(), "cores": str(os.cpu_count()), **found}


def environment_text() -> str:
    """Give `environment` as one sentence."""
    parts = [f"{name} {value}" for name, value in environment().items()]
    return "Measured on: " + ", ".join(parts) + "."


def finish(
    section: str, text: str, data: Mapping[str, Any], *, json_path: Path | None, readme: bool
) -> None:
    """Show the result, write the JSON file if one is named, and the README's section if asked."""
    Console().print(Markdown(text))
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        content = {"environment": environment(), **data}
        json_path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    if readme:
        write_section(README, section, text)


def finish_lines(
    section: str, lines: Sequence[Line], *, json_path: Path | None, readme: bool, note: str = ""
) -> None:
    """As `finish`, of lines and a ``note``; ends the process with status 1 on a missed target."""
    parts = [lines_table(lines), note, environment_text()]
    text = "\n\n".join(part for part in parts if part) + "\n"
    data = {"lines": [as_data(line) for line in lines], "note": note}
    finish(section, text, data, json_path=json_path, readme=readme)
    if not all(line.met for line in lines):
        raise SystemExit(1)


def write_section(path: Path, section: str, text: str) -> None:
    """Replace what stands between the markers of ``section``; a missing marker is an error."""
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
