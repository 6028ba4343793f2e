"""``forebay savepoint``: create, list and delete savepoints of a query's operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from forebay_state_api._conf_options import conf_options, settings_of
from forebay_state_api.errors import ConfigurationError, StorageError
from forebay_state_api.storage import open_storage
from forebay_state_api.versions import layout
from forebay_state_api.versions.epochs import list_epochs
from forebay_state_api.versions.folder import OperatorStorage
from forebay_state_api.versions.pins import delete_holder, lasting_holders
from forebay_state_api.versions.savepoints import (
    create_savepoint,
    delete_savepoint,
    list_savepoints,
)
from forebay_state_api.versions.timeline import newest_complete

if TYPE_CHECKING:
    from forebay_state_api.storage import ObjectStorage

_state_dir = click.option(
    "--state-dir", required=True, help="The state directory: a path or a URL."
)
_query = click.option("--query", required=True, help="The query's id, or its name.")
_uids = click.option(
    "--uid", "uids", multiple=True, help="An operator's uid; all of the query if not given."
)


@click.group("savepoint")
def savepoint() -> None:
    """Keep versions of a query's state under a name."""


@savepoint.command("create")
@click.argument("name")
@_state_dir
@_query
@_uids
@click.option(
    "--version",
    type=click.IntRange(min=1),
    help="The newest that all operators have if not given.",
)
@conf_options
def create(  # noqa: PLR0917 - click passes them by name
    name: str,
    state_dir: str,
    query: str,
    uids: tuple[str, ...],
    version: int | None,
    conf: tuple[str, ...],
    properties_file: Path | None,
) -> None:
    """Keep one version of a query's operators as NAME. Nothing is copied."""
    root = _opened(state_dir, conf, properties_file)
    chosen = _chosen(root, query, uids)
    if version is None:
        version = min(_newest(storage, uid) for uid, storage in chosen)
    made: list[tuple[str, ObjectStorage]] = []
    try:
        for uid, storage in chosen:
            saved = create_savepoint(storage, name, uid=uid, version=version)
            made.append((uid, storage))
            click.echo(f"{uid}: version {saved.version}, {saved.bytes:,} bytes, {saved.backend}")
    except BaseException:
        for uid, place in made:
            with suppress(StorageError):  # `savepoint list` shows it, and the cause is another one
                delete_savepoint(place, name, uid=uid)
        raise


@savepoint.command("list")
@_state_dir
@click.option("--query", help="Of this query only.")
@conf_options
def list_all(
    state_dir: str, query: str | None, conf: tuple[str, ...], properties_file: Path | None
) -> None:
    """Print savepoints, and forks that hold files of a query."""
    root = _opened(state_dir, conf, properties_file)
    queries = root.list_folders() if query is None else [layout.escaped(query, "the query")]
    table = Table("query", "uid", "savepoint", "version", "backend", "bytes", "made", box=None)
    for folder in queries:
        for uid, storage in _operators(root, folder):
            told = (layout.unescaped(folder), uid)
            for one in list_savepoints(storage):
                when = "-" if one.made is None else f"{one.made:%Y-%m-%d %H:%M}"
                numbers = (str(one.version), one.backend, f"{one.bytes:,}", when)
                table.add_row(*told, one.name, *numbers)
            for holder in lasting_holders(storage):
                if holder.startswith(FORK):
                    table.add_row(*told, holder, "-", "-", "-", "-")
    Console().print(table)


@savepoint.command("delete")
@click.argument("name")
@_state_dir
@_query
@_uids
@conf_options
def delete(  # noqa: PLR0917 - click passes them by name
    name: str,
    state_dir: str,
    query: str,
    uids: tuple[str, ...],
    conf: tuple[str, ...],
    properties_file: Path | None,
) -> None:
    """Let go of NAME, so that the janitor may delete what nobody else needs.

    "fork QUERY/UID", as the list shows it, lets go of what a fork holds whose folder was deleted.
    """
    root = _opened(state_dir, conf, properties_file)
    for uid, storage in _chosen(root, query, uids):
        if name.startswith(FORK):
            _release_fork(root, storage, name, uid)
        else:
            delete_savepoint(storage, name, uid=uid)
        click.echo(f"{uid}: let go of {name}")


FORK = "fork "
"""What the holder of a fork's pin begins with."""


def _release_fork(root: ObjectStorage, storage: ObjectStorage, holder: str, uid: str) -> None:
    fork = OperatorStorage(root, holder.removeprefix(FORK))
    if fork.list(layout.SOURCES):
        message = f"{holder!r} still lives in {fork.url}; delete its folder first"
        raise ConfigurationError(message)
    if not delete_holder(storage, holder):
        message = f"operator {uid!r} in {storage.url} is not held by {holder!r}"
        raise ConfigurationError(message)


def _operators(root: ObjectStorage, folder: str) -> Iterator[tuple[str, OperatorStorage]]:
    for part in root.list_folders(folder):
        yield layout.unescaped(part), OperatorStorage(root, f"{folder}/{part}")


def _chosen(
    root: ObjectStorage, query: str, uids: Sequence[str]
) -> list[tuple[str, OperatorStorage]]:
    """The operators that were named, or all of the query."""
    if uids:
        return [(u, OperatorStorage(root, layout.operator_folder(query, u))) for u in uids]
    found = list(_operators(root, layout.escaped(query, "the query")))
    if not found:
        message = f"no state of query {query!r} is stored in {root.url}"
        raise ConfigurationError(message)
    return found


def _newest(storage: ObjectStorage, uid: str) -> int:
    newest = newest_complete(storage, list_epochs(storage))
    if newest is None:
        message = f"no complete version of operator {uid!r} is stored in {storage.url}"
        raise ConfigurationError(message)
    return newest.version


def _opened(state_dir: str, conf: tuple[str, ...], properties_file: Path | None) -> ObjectStorage:
    return open_storage(state_dir, settings_of(conf, properties_file).storage_options())
