"""``forebay state history``: one key in every version that is stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from forebay_cli.output.progress import shown_progress
from forebay_cli.output.report import json_option
from forebay_cli.state.shown_state import finality_text, print_rows
from forebay_cli.state.source import StateSource, namespace_option, state_source
from forebay_engine.versions.choosing.finality import ShownVersion, is_final
from forebay_engine.versions.choosing.heads import list_heads
from forebay_engine.versions.choosing.opening import incomplete_version_error, is_complete
from forebay_engine.versions.choosing.pins import list_pins
from forebay_engine.versions.choosing.recovery import read_recovery
from forebay_engine.versions.choosing.timeline import begun_versions
from forebay_engine.versions.format.epochs import RunVersion, list_epochs
from forebay_state_api.errors import CorruptStateError, VersionGoneError
from forebay_state_processor.reading.look_up import found_rows, namespace_of
from forebay_state_processor.reading.snapshot import snapshot_of

if TYPE_CHECKING:
    from forebay_state_processor.reading.snapshot import Snapshot


@click.command("history")
@click.argument("key")
@click.option("--state", "states", multiple=True, help="A state.", show_default="all")
@namespace_option
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
    versions belong to the current timeline. KEY is written as for `get`, and one namespace is read,
    without timers. A damaged version is left out; its error follows the others, and the exit status
    is 2.
    """
    stored, faults = _versions(source)
    found: list[tuple[Snapshot, dict[str, Any]]] = []
    with shown_progress() as progress:
        progress.stage("reading versions", len(stored))
        for shown in stored:
            try:
                with snapshot_of(source.read, shown, show_expired=source.show_expired) as snapshot:
                    found.append((snapshot, _contents(snapshot, key, states, namespace)))
            except VersionGoneError:  # the janitor has deleted it since it was listed
                continue
            except CorruptStateError as fault:
                faults.append(str(fault))
            finally:
                progress.advance()
    if found:
        _show(found, list(states), every=every, as_json=as_json)
    if faults:
        raise CorruptStateError("\n".join(faults))


def _versions(source: StateSource) -> tuple[list[ShownVersion], list[str]]:
    """Return the stored versions, the oldest first, and the errors of the damaged ones.

    The janitor deletes the oldest first, so an incomplete version above a complete one is damaged.
    """
    storage = source.read.storage
    faults: list[str] = []
    newest = _newest(source, faults)
    stored = [newest]
    partly: list[str] = []
    held = {pin.version for pin in list_pins(storage)}
    below = begun_versions(storage, newest.at.run_key or "", newest.at.version - 1)
    for at, listing in below:
        if is_complete(listing):
            stored.append(ShownVersion(at, final=True))  # the query has continued from it
            if at.version not in held:
                faults += partly
                partly.clear()
        elif listing.torn:
            faults.append(str(incomplete_version_error(listing, source.read.uid, storage.url)))
        else:
            partly.append(str(incomplete_version_error(listing, source.read.uid, storage.url)))
    return stored[::-1], faults[::-1]


def _newest(source: StateSource, faults: list[str]) -> ShownVersion:
    """Return the version that readers show; if it is damaged, the newest one that is complete."""
    storage = source.read.storage
    try:
        return source.choose(None)
    except CorruptStateError as fault:
        epochs = list_epochs(storage)
        recovery = read_recovery(storage, epochs)
        heads = (one for one in list_heads(storage, epochs) if not recovery.leaves(one.run_key))
        head = next(heads, None)
        if head is None:
            raise
        faults.append(str(fault))
        at = RunVersion(version=head.version, run_key=head.run_key)
        return ShownVersion(at, is_final(storage, at))


def _show(
    found: Sequence[tuple[Snapshot, dict[str, Any]]],
    states: Sequence[str],
    *,
    every: bool,
    as_json: bool,
) -> None:
    """Print the contents of the versions that could be read."""
    names = states or sorted({name for _, contents in found for name in contents})
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


def _contents(
    snapshot: Snapshot, key: str, states: Sequence[str], namespace: str | None
) -> dict[str, Any]:
    known = [name for name in states or snapshot.states if name in snapshot.states]
    rows = found_rows(snapshot, key, known, namespace_of(namespace))[1] if known else {}
    return {name: row.value for name, row in rows.items()}
