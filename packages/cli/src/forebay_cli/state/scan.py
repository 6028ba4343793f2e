"""``forebay state scan``: rows of a state, or of a whole operator."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from forebay_cli.options.key_groups import check_key_groups, key_groups_option
from forebay_cli.output.progress import shown_progress
from forebay_cli.output.report import json_option
from forebay_cli.state.shown_state import limited, print_rows, show_version
from forebay_cli.state.source import StateSource, state_source, version_option
from forebay_cli.state.table_files import plain_of
from forebay_state_api.errors import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

    from forebay_state_api.keys import KeyGroupRange
    from forebay_state_api.progress import Progress
    from forebay_state_processor.reading.snapshot import Snapshot

ALL_STATES: Final = "a row per key, with a column per state"
"""The default of ``--state``."""
_ON_TERMINAL: Final = 20
"""The default limit on a terminal."""


def tables(
    snapshot: Snapshot,
    state: str | None,
    groups: KeyGroupRange | None,
    *,
    flat: bool,
    timers: bool = False,
) -> pa.RecordBatchReader:
    """Return the table of a state, or of the operator for ``None``, or of its timers."""
    check_key_groups(groups, snapshot.max_parallelism)
    if timers and (state is not None or flat):
        raise ConfigurationError("--timers cannot be combined with --state or --flat")
    if timers:
        return snapshot.timer_table(key_groups=groups)
    if state is not None:
        return snapshot.to_arrow(state, flat=flat, key_groups=groups)
    if flat:
        raise ConfigurationError("--flat needs --state: the rows of one state are flattened")
    return snapshot.table(key_groups=groups)


def chosen_columns(schema: pa.Schema, names: str | None) -> list[str]:
    """Return the columns that ``names`` lists, separated by commas; all of them for ``None``."""
    if names is None:
        return list(schema.names)
    chosen = [name.strip() for name in names.split(",")]
    unknown = [name for name in chosen if name not in schema.names]
    if unknown:
        raise ConfigurationError(
            f"there is no column {unknown[0]!r}; columns: {', '.join(schema.names)}"
        )
    return chosen


timers_option: Final = click.option(
    "--timers", is_flag=True, help="The registered timers, in place of states."
)


@click.command("scan")
@click.option("--state", help="One state.", show_default=ALL_STATES)
@click.option("--columns", help="Columns, separated by commas.", show_default="all")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    help="The most rows.",
    show_default=f"{_ON_TERMINAL} on a terminal, else all",
)
@click.option("--flat", is_flag=True, help="A row per element of a list or entry of a map.")
@timers_option
@key_groups_option
@version_option
@json_option
@state_source
def scan_state(
    *,
    state: str | None,
    columns: str | None,
    limit: int | None,
    key_groups: KeyGroupRange | None,
    version: str | None,
    source: StateSource,
    timers: bool,
    flat: bool,
    as_json: bool,
) -> None:
    """Print rows of state, or timers, in no order.

    With --json each row is one line. It is an object with the columns of the table, so that `jq`
    and others can read it.
    """
    most = limit if limit is not None or as_json or not sys.stdout.isatty() else _ON_TERMINAL
    with source.open(version) as snapshot:
        show_version(snapshot)
        reader = tables(snapshot, state, key_groups, flat=flat, timers=timers)
        names = chosen_columns(reader.schema, columns)
        if as_json:
            found, more = limited_rows(reader, names, most), False
            print_rows(names, found, as_json=True)
            return
        with shown_progress() as progress:
            rows, more = limited(rows_of(reader, names, progress), most)
        print_rows(names, rows, as_json=False)
        if more:
            click.echo(f"there are more rows than {most}: pass --limit", err=True)


def limited_rows(
    reader: pa.RecordBatchReader, names: list[str], most: int | None
) -> Iterator[list[Any]]:
    """Yield the first rows."""
    for count, row in enumerate(rows_of(reader, names)):
        if count == most:
            return
        yield row


def rows_of(
    reader: pa.RecordBatchReader, names: list[str], progress: Progress | None = None
) -> Iterator[list[Any]]:
    """Yield rows as plain values, with maps as dicts."""
    if progress is not None:
        progress.stage("scanning")
    plain = [plain_of(reader.schema.field(name).type) for name in names]
    for batch in reader:
        columns = [
            [convert(value) for value in column.to_pylist()]
            for convert, column in zip(plain, batch.select(names).columns, strict=True)
        ]
        if progress is not None:
            progress.advance(batch.num_rows)
        yield from map(list, zip(*columns, strict=True))
