"""``forebay savepoint``: create, list and delete savepoints of a query's operators."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import click

from forebay_cli.options.conf import conf_options
from forebay_cli.options.operators import (
    of_query_option,
    operators_in,
    operators_of_query,
    query_option,
)
from forebay_cli.options.state_directory import state_dir_option, state_directory
from forebay_cli.output.progress import shown_progress
from forebay_cli.output.report import json_option, print_json, print_table
from forebay_engine.versions.choosing.pins import delete_holder, lasting_holders
from forebay_engine.versions.choosing.savepoints import (
    Savepoint,
    create_savepoint,
    delete_savepoint,
    list_savepoints,
)
from forebay_engine.versions.choosing.timeline import newest_complete
from forebay_engine.versions.format import layout
from forebay_engine.versions.format.directory_contents import nothing_stored_error
from forebay_engine.versions.format.epochs import list_epochs
from forebay_engine.versions.format.folder import OperatorStorage
from forebay_state_api.errors import ConfigurationError, StorageError

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_api.settings import Settings
    from forebay_state_processor.observing.operators import StoredOperator

_uids = click.option(
    "--uid", "uids", multiple=True, help="An operator's uid.", show_default="all of the query"
)


_COLUMNS: Final = ("query", "uid", "savepoint", "version", "backend", "bytes", "made")


@click.group("savepoint")
def savepoint() -> None:
    """Keep versions of a query's state under a name."""


@savepoint.command("create")
@click.argument("name")
@state_dir_option
@query_option
@_uids
@click.option(
    "--version",
    type=click.IntRange(min=1),
    help="The version.",
    show_default="the newest that all operators have",
)
@json_option
@conf_options
def create(  # noqa: PLR0917 - click passes them by name
    name: str,
    state_dir: str,
    query: str | None,
    uids: tuple[str, ...],
    version: int | None,
    settings: Settings,
    *,
    as_json: bool,
) -> None:
    """Keep one version of a query's operators as NAME. Nothing is copied."""
    root = state_directory(state_dir, settings)
    chosen = operators_of_query(root, query, uids)
    if version is None:
        version = min(_newest(one.storage(root), one.uid) for one in chosen)
    made: list[tuple[StoredOperator, Savepoint]] = []
    try:
        with shown_progress() as progress:
            for one in chosen:
                saved = create_savepoint(
                    one.storage(root), name, uid=one.uid, version=version, progress=progress
                )
                made.append((one, saved))
    except BaseException:
        for one, _ in made:
            with suppress(StorageError):  # the first error matters; `savepoint list` shows the rest
                delete_savepoint(one.storage(root), name, uid=one.uid)
        raise
    if as_json:
        print_json([_plain(one, saved) for one, saved in made])
        return
    for one, saved in made:
        click.echo(f"{one.uid}: version {saved.version}, {saved.bytes:,} bytes, {saved.backend}")


@savepoint.command("list")
@state_dir_option
@of_query_option
@json_option
@conf_options
def list_all(state_dir: str, query: str | None, settings: Settings, *, as_json: bool) -> None:
    """Print savepoints, and forks that hold files of a query."""
    root = state_directory(state_dir, settings)
    found = []
    for one in operators_in(root, query):
        storage = one.storage(root)
        found += [_plain(one, saved) for saved in list_savepoints(storage)]
        holders = [held for held in lasting_holders(storage) if held.startswith(FORK)]
        found += [_plain_fork(one, holder) for holder in holders]
    if as_json:
        print_json(found)
        return
    print_table(_COLUMNS, [one.values() for one in found])


def _plain(one: StoredOperator, saved: Savepoint) -> dict[str, Any]:
    values = (one.query, one.uid, saved.name, saved.version, saved.backend, saved.bytes, saved.made)
    return dict(zip(_COLUMNS, values, strict=True))


def _plain_fork(one: StoredOperator, holder: str) -> dict[str, Any]:
    return dict(zip(_COLUMNS, (one.query, one.uid, holder, None, None, None, None), strict=True))


@savepoint.command("delete")
@click.argument("name")
@state_dir_option
@query_option
@_uids
@json_option
@conf_options
def delete(
    name: str,
    state_dir: str,
    query: str | None,
    uids: tuple[str, ...],
    settings: Settings,
    *,
    as_json: bool,
) -> None:
    """Delete the savepoint NAME; the janitor then deletes files that nothing else needs.

    "fork QUERY/UID", as in the list, releases the files of a fork whose folder was deleted.
    """
    root = state_directory(state_dir, settings)
    chosen = operators_of_query(root, query, uids)
    for one in chosen:
        if name.startswith(FORK):
            _release_fork(root, one, name)
        else:
            delete_savepoint(one.storage(root), name, uid=one.uid)
        if not as_json:
            click.echo(f"{one.uid}: deleted {name}")
    if as_json:
        print_json([{"query": one.query, "uid": one.uid, "savepoint": name} for one in chosen])


FORK = "fork "
"""Prefix of the holder of a fork's pin."""


def _release_fork(root: ObjectStorage, source: StoredOperator, holder: str) -> None:
    storage = source.storage(root)
    fork = OperatorStorage(root, holder.removeprefix(FORK))
    if fork.list(layout.SOURCES):
        raise ConfigurationError(f"{holder!r} still exists in {fork.url}; delete its folder first")
    if not delete_holder(storage, holder):
        raise ConfigurationError(
            f"operator {source.uid!r} in {storage.url} is not held by {holder!r}"
        )


def _newest(storage: OperatorStorage, uid: str) -> int:
    newest = newest_complete(storage, list_epochs(storage))
    if newest is None:
        raise nothing_stored_error(storage, uid)
    return newest.version
