"""``forebay state schema``: what is stored, and whether a function fits it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from forebay_state_api import schema
from forebay_state_api._conf_options import conf_options, settings_of
from forebay_state_api._skew_command import show_skew
from forebay_state_api.codecs import describe_type
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.plugins import plugins
from forebay_state_api.storage import open_storage
from forebay_state_api.versions.folder import OperatorStorage
from forebay_state_api.versions.layout import operator_folder
from forebay_state_api.versions.reader import VersionReader, open_version

_FITS = (schema.COMPATIBLE, schema.NEW, schema.KEPT)


@click.group("state")
def state() -> None:
    """Look at stored state."""


state.add_command(show_skew)


@state.command("schema")
@click.option("--state-dir", required=True, help="The state directory: a path or a URL.")
@click.option("--query", required=True, help="The query's id, or its name.")
@click.option("--uid", required=True, help="The operator's uid.")
@click.option("--version", type=click.IntRange(min=1), help="The newest complete one if not given.")
@click.option("--function", metavar="MODULE:NAME", help="A function to be checked.")
@click.option("--key", metavar="TYPE", help="The key column's type, or 'name type, name type'.")
@conf_options
@click.pass_context
def show_schema(  # noqa: PLR0917 - click passes them by name
    context: click.Context,
    state_dir: str,
    query: str,
    uid: str,
    version: int | None,
    function: str | None,
    key: str | None,
    conf: tuple[str, ...],
    properties_file: Path | None,
) -> None:
    """Print the stored description of an operator's state.

    With --function, a function class or object in a module that can be imported from here, tell
    whether it can go on from that state; exit status 1 if not. Its ``open`` is called.
    """
    options = settings_of(conf, properties_file).storage_options()
    storage = OperatorStorage(open_storage(state_dir, options), operator_folder(query, uid))
    checked = None if function is None else _loaded(function)
    with open_version(storage, uid=uid, version=version) as reader:
        verdicts = {} if checked is None else _verdicts(checked, reader, storage)
        _show(reader, verdicts)
        fits = all(verdict in _FITS for verdict in verdicts.values())
        if not (_key_fits(reader, key) and fits):
            context.exit(1)


def _verdicts(function: Any, reader: VersionReader, storage: OperatorStorage) -> dict[str, str]:
    backend = plugins().backend(reader.manifests[0].backend)
    return schema.check_function(function, reader, backend, storage)


def _show(reader: VersionReader, verdicts: dict[str, str]) -> None:
    made, key = reader.manifests[0], schema.stored_key(reader.manifests)
    click.echo(
        f"version {reader.version}, backend {made.backend}, max parallelism "
        f"{made.made.max_parallelism}, key {'-' if key is None else describe_type(key)}"
    )
    table = Table("state", "kind", "type", "TTL", box=None, pad_edge=False)
    if verdicts:
        table.add_column("function")
    stored = schema.stored_states(reader.manifests)
    for one in stored:
        verdict = [verdicts.get(one.name, "")] if verdicts else []
        table.add_row(one.name, one.kind, one.type, "on" if one.ttl else "-", *_short(verdict))
    for name in sorted(verdicts.keys() - {one.name for one in stored}):
        table.add_row(name, "-", "-", "-", *_short([verdicts[name]]))
    Console().print(table)
    for fault in (text for text in verdicts.values() if text not in _FITS):
        click.echo(f"NOT COMPATIBLE  {fault}")


def _short(verdicts: list[str]) -> list[str]:
    return [verdict if verdict in _FITS else "NOT COMPATIBLE" for verdict in verdicts]


def _key_fits(reader: VersionReader, ddl: str | None) -> bool:
    stored = schema.stored_key(reader.manifests)
    if ddl is None or stored is None:
        return True
    declared = schema.key_description(ddl)
    if declared == stored:
        return True
    click.echo(
        f"NOT COMPATIBLE  the key was stored as {describe_type(stored)}, and {ddl!r} is "
        f"{describe_type(declared)}; keys do not migrate: cast the column, or give the operator "
        "another uid"
    )
    return False


def _loaded(path: str) -> Any:
    """The function that ``module:name`` stands for; a class is called without arguments."""
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        message = f"--function takes module:name, not {path!r}"
        raise ConfigurationError(message)
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        return found() if isinstance(found, type) else found
    except (ImportError, AttributeError, TypeError) as error:
        message = f"--function {path}: {error}"
        raise ConfigurationError(message) from error
    finally:
        sys.path.pop(0)
