"""The output of ``forebay state`` commands: versions, values and rows."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from forebay_cli.output.report import print_table
from forebay_state_processor.reading.arrow_types import jsonable, to_json

if TYPE_CHECKING:
    from forebay_state_processor.reading.snapshot import Snapshot

LONGEST: Final = 2_000
"""The most characters of a value in a table on a terminal."""


def show_version(snapshot: Snapshot) -> None:
    """Print which version is shown to stderr, so that stdout has the results alone."""
    click.echo(version_text(snapshot), err=True)


def version_text(snapshot: Snapshot) -> str:
    """Return a line about a version."""
    made = snapshot.batch_time
    when = "" if made is None else f", batch of {made:%Y-%m-%d %H:%M:%S} UTC"
    shown = finality_text(final=snapshot.final)
    return f"version {snapshot.version} ({shown}){when}, run {snapshot.run}"


def finality_text(*, final: bool) -> str:
    """Return the words for whether a version is final."""
    return "final" if final else "provisional: a replay of its batch may replace it"


def version_plain(snapshot: Snapshot) -> dict[str, Any]:
    """Return a version and its finality as plain data."""
    return {
        "version": snapshot.version,
        "run": snapshot.run,
        "final": snapshot.final,
        "batch_time": None if snapshot.batch_time is None else snapshot.batch_time.isoformat(),
    }


def print_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, as_json: bool) -> int:
    """Print rows as a table, or as JSON, one object a line; return their number."""
    count = 0
    if as_json:
        for count, row in enumerate(rows, 1):  # noqa: B007 - the number of rows
            values = {name: jsonable(value) for name, value in zip(columns, row, strict=True)}
            click.echo(json.dumps(values, ensure_ascii=False))
        return count
    shown = [[value_text(value) for value in row] for row in rows]
    print_table(columns, shown)
    return len(shown)


def value_text(value: Any) -> str | None:
    """Return a plain value as people read it; ``None`` for ``None``."""
    if value is None or isinstance(value, str):
        text = value
    elif isinstance(value, datetime):
        text = value.isoformat(sep=" ")
    elif isinstance(value, list | tuple | dict | bytes | bool):
        text = to_json(value)
    else:
        text = str(value)
    if text is not None and len(text) > LONGEST and sys.stdout.isatty():
        return f"{text[:LONGEST]}… ({len(text):,} characters)"
    return text


def limited(rows: Iterator[Any], limit: int | None) -> tuple[list[Any], bool]:
    """Return the first rows, and whether there are more."""
    if limit is None:
        return list(rows), False
    found: list[Any] = []
    for row in rows:
        if len(found) == limit:
            return found, True
        found.append(row)
    return found, False
