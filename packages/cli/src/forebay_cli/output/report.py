"""Print results of commands: as an uncut table for people, or as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
import click

from forebay_cli.output.terminal import one_line

if TYPE_CHECKING:
    from rich.table import Table

    from forebay_engine.versions.cleaning.storage_probe import ProbeFinding

F = TypeVar("F", bound=Callable[..., Any])


def json_option(command: F) -> F:
    """Add the parameter ``as_json``, from ``--json``, to a command."""
    option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
    return option(command)


def print_json(found: Any) -> None:
    """Print plain data as JSON; times and other objects become text."""
    click.echo(json.dumps(found, indent=2, default=text_of))


def text_of(value: Any) -> str:
    """Return an object as text for JSON: times as ISO 8601, with a ``T``, others as ``str``."""
    return value.isoformat() if isinstance(value, datetime) else str(value)


def print_findings(findings: Iterable[ProbeFinding], *, as_json: bool) -> None:
    """Print findings as they are made, or all as JSON; exit with status 1 if one is a problem."""
    found = []
    for finding in findings:
        found.append(finding)
        if not as_json:
            line = f"{finding.promise}: {finding.problem}" if finding.problem else finding.promise
            click.echo(f"{'BAD ' if finding.problem else 'ok  '} {line}")
    if as_json:
        print_json([attrs.asdict(finding) for finding in found])
    if any(finding.problem for finding in found):
        raise click.exceptions.Exit(1)


def print_table(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> None:
    """Print `table_of` rows; on a terminal that is too narrow, cells are folded, never cut.

    Files and pipes get tabs between the cells, and no padding.
    """
    from forebay_cli.output.rich_console import console

    terminal = console()
    if terminal.is_terminal:
        terminal.print(table_of(columns, rows))
        return
    for row in (columns, *rows):
        click.echo("\t".join(map(_shown, row)))


def table_of(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> Table:
    """Return rows below the column names, with ``None`` as a dash and numbers with commas."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_shown(cell)) for cell in row))
    return table


def _shown(cell: Any) -> str:
    if cell is None or cell == "":
        return "-"
    return f"{cell:,}" if isinstance(cell, int) else one_line(str(cell))
