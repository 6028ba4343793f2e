"""``forebay state get``: the content of states under a key, in one namespace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from forebay_cli.output.report import json_option, print_json
from forebay_cli.state.shown_state import print_rows, show_version, version_plain
from forebay_cli.state.source import (
    StateSource,
    namespace_option,
    state_source,
    version_option,
)
from forebay_state_processor.reading.arrow_types import jsonable
from forebay_state_processor.reading.look_up import found_rows, namespace_of

if TYPE_CHECKING:
    from forebay_state_processor.reading.rows import StateRow
    from forebay_state_processor.reading.snapshot import Snapshot


@click.command("get")
@click.argument("key")
@click.option("--state", "states", multiple=True, help="A state.", show_default="all")
@namespace_option
@version_option
@json_option
@state_source
@click.pass_context
def get_key(
    context: click.Context,
    *,
    key: str,
    states: tuple[str, ...],
    namespace: str | None,
    version: str | None,
    source: StateSource,
    as_json: bool,
) -> None:
    """Print what the states hold under a key, in one namespace.

    KEY is written as it looks in the data: several columns separated by commas, times as in
    2026-11-24T08:00:00, bytes in hexadecimal. Exit status 1 if nothing is stored under it there.
    `scan` shows all namespaces, `scan --timers` the timers.
    """
    at = namespace_of(namespace)
    with source.open(version) as snapshot:
        names = states or tuple(snapshot.states)
        found_key, rows = found_rows(snapshot, key, names, at)
        if as_json:
            print_json(_plain(snapshot, found_key, rows))
        else:
            show_version(snapshot)
            _show(snapshot, rows)
    if not rows:
        what = f"nothing of {', '.join(states)}" if states else "nothing"
        where = "the default namespace" if at is None else f"the namespace {at!r}"
        click.echo(f"{what} is stored under the key {found_key!r} in {where}", err=True)
        context.exit(1)


def _plain(snapshot: Snapshot, key: Any, rows: dict[str, StateRow]) -> dict[str, Any]:
    states = {
        name: {"value": jsonable(row.value)}
        | ({} if row.written is None else {"written": jsonable(row.written)})
        for name, row in rows.items()
    }
    group = snapshot.key_group_of(key)
    return version_plain(snapshot) | {"key": jsonable(key), "key_group": group, "states": states}


def _show(snapshot: Snapshot, rows: dict[str, StateRow]) -> None:
    if not rows:
        return
    with_times = any(row.written is not None for row in rows.values())
    columns = ["state", "kind", "value", *(["written"] if with_times else [])]
    print_rows(
        columns,
        (
            [name, snapshot.states[name].kind, row.value, *([row.written] if with_times else [])]
            for name, row in rows.items()
        ),
        as_json=False,
    )
