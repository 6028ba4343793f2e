"""``forebay savepoint``: create, list and delete savepoints of a query's operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import click

from forebay_cli.options.conf import conf_options
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
from forebay_engine.versions.format.directory_contents import what_is_there
from forebay_engine.versions.format.epochs import list_epochs
from forebay_engine.versions.format.folder import OperatorStorage
from forebay_state_api.errors import ConfigurationError, StorageError

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_api.settings import Settings

_query = click.option("--query", required=True, help="The query's id, or the operator's query=.")
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
@_query
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
    query: str,
    uids: tuple[str, ...],
    version: int | None,
    settings: Settings,
    *,
    as_json: bool,
) -> None:
    """Keep one version of a query's operators as NAME. Nothing is copied."""
    root = state_directory(state_dir, settings)
    chosen = _chosen(root, query, uids)
    if version is None:
        version = min(_newest(storage, uid) for uid, storage in chosen)
    made: list[tuple[str, ObjectStorage, Savepoint]] = []
    try:
        with shown_progress() as progress:
            for uid, storage in chosen:
                saved = create_savepoint(storage, name, uid=uid, version=version, progress=progress)
                made.append((uid, storage, saved))
    except BaseException:
        for uid, place, _ in made:
            with suppress(StorageError):  # the first error matters; `savepoint list` shows the rest
                delete_savepoint(place, name, uid=uid)
        raise
    if as_json:
        print_json([_plain(query, uid, saved) for uid, _, saved in made])
        return
    for uid, _, saved in made:
        click.echo(f"{uid}: version {saved.version}, {saved.bytes:,} bytes, {saved.backend}")


@savepoint.command("list")
@state_dir_option
@click.option("--query", help="Of this query only.")
@json_option
@conf_options
def list_all(state_dir: str, query: str | None, settings: Settings, *, as_json: bool) -> None:
    """Print savepoints, and forks that hold files of a query."""
    root = state_directory(state_dir, settings)
    queries = root.list_folders() if query is None else [layout.escaped(query, "the query")]
    operators = [(folder, *one) for folder in queries for one in _operators(root, folder)]
    if not operators:
        there = what_is_there(root, query)
        raise ConfigurationError(f"no such operator in {root.url}: {there}")
    found = []
    for folder, uid, storage in operators:
        name = layout.unescaped(folder)
        found += [_plain(name, uid, one) for one in list_savepoints(storage)]
        holders = [held for held in lasting_holders(storage) if held.startswith(FORK)]
        found += [_plain_fork(name, uid, holder) for holder in holders]
    if as_json:
        print_json(found)
        return
    print_table(_COLUMNS, [one.values() for one in found])


def _plain(query: str, uid: str, saved: Savepoint) -> dict[str, Any]:
    values = (query, uid, saved.name, saved.version, saved.backend, saved.bytes, saved.made)
    return dict(zip(_COLUMNS, values, strict=True))


def _plain_fork(query: str, uid: str, holder: str) -> dict[str, Any]:
    return dict(zip(_COLUMNS, (query, uid, holder, None, None, None, None), strict=True))


@savepoint.command("delete")
@click.argument("name")
@state_dir_option
@_query
@_uids
@json_option
@conf_options
def delete(
    name: str,
    state_dir: str,
    query: str,
    uids: tuple[str, ...],
    settings: Settings,
    *,
    as_json: bool,
) -> None:
    """Delete the savepoint NAME; the janitor then deletes files that nothing else needs.

    "fork QUERY/UID", as in the list, releases the files of a fork whose folder was deleted.
    """
    root = state_directory(state_dir, settings)
    chosen = _chosen(root, query, uids)
    for uid, storage in chosen:
        if name.startswith(FORK):
            _release_fork(root, storage, name, uid)
        else:
            delete_savepoint(storage, name, uid=uid)
        if not as_json:
            click.echo(f"{uid}: deleted {name}")
    if as_json:
        print_json([{"query": query, "uid": uid, "savepoint": name} for uid, _ in chosen])


FORK = "fork "
"""Prefix of the holder of a fork's pin."""


def _release_fork(root: ObjectStorage, storage: ObjectStorage, holder: str, uid: str) -> None:
    fork = OperatorStorage(root, holder.removeprefix(FORK))
    if fork.list(layout.SOURCES):
        raise ConfigurationError(f"{holder!r} still exists in {fork.url}; delete its folder first")
    if not delete_holder(storage, holder):
        raise ConfigurationError(f"operator {uid!r} in {storage.url} is not held by {holder!r}")


def _operators(root: ObjectStorage, folder: str) -> Iterator[tuple[str, OperatorStorage]]:
    for part in root.list_folders(folder):
        yield layout.unescaped(part), OperatorStorage(root, f"{folder}/{part}")


def _chosen(
    root: ObjectStorage, query: str, uids: Sequence[str]
) -> list[tuple[str, OperatorStorage]]:
    """Return the named operators, or all of the query."""
    if uids:
        return [(u, OperatorStorage(root, layout.operator_folder(query, u))) for u in uids]
    found = list(_operators(root, layout.escaped(query, "the query")))
    if not found:
        there = what_is_there(root, query)
        raise ConfigurationError(f"no such operator in {root.url}: {there}")
    return found


def _newest(storage: ObjectStorage, uid: str) -> int:
    newest = newest_complete(storage, list_epochs(storage))
    if newest is None:
        raise ConfigurationError(
            f"no complete version of operator {uid!r} is stored in {storage.url}"
        )
    return newest.version
