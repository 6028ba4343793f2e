"""``forebay state history``: one key in every version that is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from forebay_state_api.commands.progress import shown_progress
from forebay_state_api.commands.report import json_option
from forebay_state_api.commands.state_get import found_rows, namespace_of
from forebay_state_api.commands.state_report import finality_text, print_rows
from forebay_state_api.commands.state_source import StateSource, state_source
from forebay_state_api.errors import ConfigurationError, CorruptStateError
from forebay_state_api.reading.feed import ChangeFeed
from forebay_state_api.reading.positions import START, Position
from forebay_state_api.reading.snapshot import snapshot_of
from forebay_state_api.versions.finality import Shown, is_final

if TYPE_CHECKING:
    from forebay_state_api.reading.snapshot import Snapshot


@click.command("history")
@click.argument("key")
@click.option("--state", "states", multiple=True, help="A state; default: all of them.")
@click.option("--namespace", help="Default: the default namespace.")
@click.option("--all", "every", is_flag=True, help="Show versions without a change, too.")
@json_option
@state_source
def show_history(
    *,
    key: str,
    states: tuple[str, ...],
    namespace: str | None,
    source: StateSource,
    every: bool,
    as_json: bool,
) -> None:
    """Print what a key held in every version that is stored, the oldest first.

    Versions in which nothing under the key changed are left out, but for the first one. The
    versions are those of the current timeline. KEY is written as for `get`, and as there one
    namespace is read, and no timers.
    """
    feed = ChangeFeed(source.read, provisional=source.provisional)
    positions = feed.after(START)
    if not positions:
        source.choose(None)  # raises, and says what there is
    found: list[tuple[Snapshot, dict[str, Any]]] = []
    with shown_progress() as progress:
        progress.stage("reading versions", len(positions))
        for position in positions:
            opened = _opened(source, position, newest=position == positions[-1])
            if opened is not None:
                with opened as snapshot:
                    found.append((snapshot, _contents(snapshot, key, states, namespace)))
            progress.advance()
    names = list(states) or sorted({name for _, contents in found for name in contents})
    kept = [one for at, one in enumerate(found) if every or not at or one[1] != found[at - 1][1]]
    rows = [
        [s.version, s.batch_time, s.run, *([s.final] if as_json else []), *map(contents.get, names)]
        for s, contents in kept
    ]
    final = all(snapshot.final for snapshot, _ in found)
    which = finality_text(final=True) if final else f"the newest {finality_text(final=False)}"
    click.echo(f"{len(found)} stored version(s), {which}", err=True)
    columns = ["version", "batch_time", "run", *(["final"] if as_json else [])]
    print_rows([*columns, *names], rows, as_json=as_json)


def _opened(source: StateSource, position: Position, *, newest: bool) -> Snapshot | None:
    """Pin a version; ``None`` if the janitor has deleted it since it was listed."""
    # The query has gone on from all versions but the newest, so they are final.
    unsure = newest and source.provisional
    final = not unsure or is_final(source.read.storage, position.at)
    try:
        return snapshot_of(source.read, Shown(position.at, final), show_expired=source.show_expired)
    except (ConfigurationError, CorruptStateError):
        if position in ChangeFeed(source.read).after(START):
            raise
        return None


def _contents(
    snapshot: Snapshot, key: str, states: Sequence[str], namespace: str | None
) -> dict[str, Any]:
    known = [name for name in states or snapshot.states if name in snapshot.states]
    rows = found_rows(snapshot, key, known, namespace_of(namespace))[1] if known else {}
    return {name: row.value for name, row in rows.items()}
