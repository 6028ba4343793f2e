"""``forebay state schema``: show the stored states, and check a function against them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import click

from forebay_cli.options.function import loaded_function
from forebay_cli.options.operators import operator_options
from forebay_cli.output.progress import shown_progress
from forebay_cli.output.report import json_option, print_json, print_table
from forebay_cli.state.shown_state import finality_text
from forebay_cli.state.source import StateSource, provisional_option, version_option
from forebay_engine.codecs.field_changes import FieldChange
from forebay_engine.stored import schema_check as schema
from forebay_engine.versions.choosing.finality import ShownVersion
from forebay_engine.versions.choosing.reader import VersionReader, open_version
from forebay_engine.versions.format.key_types import KeyType, key_type_of, key_type_text
from forebay_engine.versions.format.keyed_by import KeyedBy
from forebay_engine.versions.format.manifest import Manifest
from forebay_state_api.codecs import describe_type
from forebay_state_api.errors import ConfigurationError, StateMigrationError
from forebay_state_api.plugins import plugins
from forebay_state_processor.reading.operator_state_rows import operator_states_of
from forebay_state_processor.reading.snapshot import snapshot_of
from forebay_state_processor.reading.stored_states import states_of
from forebay_state_processor.reading.version_choice import OperatorSource

_FITS = (schema.COMPATIBLE, schema.NEW, schema.KEPT)
_NO_CHECK: Final = schema.FunctionCheck(verdicts={}, changes={})
REFUSED: Final = 1
"""The exit status if a function, or a key, cannot go on with the state."""
DROPS: Final = 3
"""The exit status if stored values would lose something; errors exit with 2."""
_UNITS: Final = {
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "min": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}


@click.command("schema")
@version_option
@provisional_option
@click.option("--function", metavar="MODULE:NAME", help="A function to check.")
@click.option("--key", metavar="TYPE", help="The key column's type, or 'name type, name type'.")
@click.option("--sizes", is_flag=True, help="Read how many bytes are stored of each state.")
@json_option
@operator_options
@click.pass_context
def show_schema(
    context: click.Context,
    *,
    version: str | None,
    function: str | None,
    key: str | None,
    read: OperatorSource,
    provisional: bool,
    sizes: bool,
    as_json: bool,
) -> None:
    """Print the stored description of an operator's state.

    With --function, a function class or object in a module that can be imported here, check
    whether it can continue from that state, and what its values would lose. The exit status is 1
    if it cannot, 3 if values would lose a field or an enumeration's member, and 0 otherwise. Its
    ``open`` is called.
    """
    checked = None if function is None else loaded_function(function)
    source = StateSource(read=read, provisional=provisional, show_expired=True)
    shown = source.choose(version)
    at = shown.at
    with shown_progress() as progress:
        reader = open_version(
            read.storage, uid=read.uid, version=at.version, run_key=at.run_key, progress=progress
        )
    with reader:
        check = _NO_CHECK if checked is None else _check(checked, reader, read)
        misfit = _key_misfit(reader, key)
        found = _sizes(read, shown) if sizes else None
        plain = _plain(reader, shown, check, misfit, found)
        if as_json:
            print_json(plain)
        else:
            _show(plain, reader, check, found)
        if misfit or not all(verdict in _FITS for verdict in check.verdicts.values()):
            context.exit(REFUSED)
        if check.drops:
            context.exit(DROPS)


def _check(function: Any, reader: VersionReader, read: OperatorSource) -> schema.FunctionCheck:
    backend = plugins().backend(reader.manifests[0].backend)
    return schema.check_function(function, reader, backend, read.options_of(backend))


def _sizes(read: OperatorSource, shown: ShownVersion) -> Mapping[str, int]:
    with snapshot_of(read, shown) as snapshot:
        found = snapshot.state_bytes()
    if found is None:
        raise ConfigurationError(
            f"the backend {snapshot.backend!r} does not report the size of each state: leave "
            "--sizes out; state skew shows the bytes of each subtask"
        )
    return found


def _plain(
    reader: VersionReader,
    shown: ShownVersion,
    check: schema.FunctionCheck,
    misfit: str,
    sizes: Mapping[str, int] | None,
) -> dict[str, Any]:
    made = reader.manifests[0]
    return {
        "version": reader.version,
        "run": reader.run_key,
        "final": shown.final,
        "backend": made.backend,
        "max_parallelism": made.made.max_parallelism,
        "key": key_type_text(reader.manifests),
        "key_columns": [
            [{"name": one.name, "kind": one.kind} for one in columns]
            for columns in KeyedBy.of(made).inputs
        ],
        "states": [
            one | ({} if sizes is None else {"bytes": sizes.get(one["name"])})
            for one in plain_states(reader.manifests)
        ],
        "function": check.verdicts,
        "changes": [
            {"state": name, **attrs.asdict(one)}
            for name, changes in sorted(check.changes.items())
            for one in changes
        ],
        "key_misfit": misfit,
    }


def plain_states(manifests: Sequence[Manifest]) -> list[dict[str, Any]]:
    """Return all states of a version, keyed states first."""
    keyed: list[dict[str, Any]] = [
        {
            "name": one.name,
            "kind": one.kind,
            "type": one.type,
            "ttl": one.has_ttl,
            "ttl_us": one.ttl_us,
            "before": one.before,
        }
        for one in states_of(manifests).values()
    ]
    without: dict[str, Any] = {"ttl": False, "ttl_us": None, "before": []}
    return keyed + [
        {"name": one.name, "kind": f"operator {one.mode}", "type": one.type, **without}
        for one in operator_states_of(manifests).values()
    ]


def _show(
    plain: dict[str, Any],
    reader: VersionReader,
    check: schema.FunctionCheck,
    sizes: Mapping[str, int] | None,
) -> None:
    click.echo(
        f"version {plain['version']} ({finality_text(final=plain['final'])}), run {plain['run']}, "
        f"backend {plain['backend']}, max parallelism {plain['max_parallelism']}, "
        f"key {plain['key'] or '-'}{_keyed_by(reader)}"
    )
    stored, verdicts = plain["states"], check.verdicts
    rows = [[one["name"], one["kind"], one["type"], _ttl(one)] for one in stored]
    rows += [[name, "", "", ""] for name in sorted(verdicts.keys() - {row[0] for row in rows})]
    columns = ["state", "kind", "type", "TTL"]
    if sizes is not None:
        columns.append("bytes")
        rows = [[*row, sizes.get(row[0])] for row in rows]
    if verdicts:
        columns.append("function")
        rows = [[*row, _short(verdicts.get(row[0], ""), check.changes.get(row[0]))] for row in rows]
    print_table(columns, rows)
    for one in stored:
        if one["before"]:
            click.echo(f"{one['name']} was stored before as {', then '.join(one['before'])}")
    for name, changes in sorted(check.changes.items()):
        for line in _lines(name, changes):
            click.echo(line)
    faults = [text for text in verdicts.values() if text not in _FITS]
    for fault in [*faults, *filter(None, [plain["key_misfit"]])]:
        click.echo(f"NOT COMPATIBLE  {fault}")


def _ttl(state: Mapping[str, Any]) -> str:
    if not state["ttl"]:
        return ""
    return "on" if state["ttl_us"] is None else _duration(state["ttl_us"])


def _duration(us: int) -> str:
    """Format a duration in the largest unit that gives a whole number."""
    unit = next(unit for unit, size in _UNITS.items() if us % size == 0)
    return f"{us // _UNITS[unit]}{unit}"


def _short(verdict: str, changes: Sequence[FieldChange] | None) -> str:
    if any(one.loses for one in changes or ()):
        return "drops"
    return verdict if verdict in ("", *_FITS) else "NOT COMPATIBLE"


def _lines(state: str, changes: Sequence[FieldChange]) -> Iterator[str]:
    """Yield a line for each field that changes, with the cure for a rename."""
    added = [one.field for one in changes if one.change == "added"]
    for one in changes:
        where = f"state {state!r}" + (f", field {one.field}" if one.field else "")
        if one.change == "dropped":
            name = one.field.rpartition(".")[-1]
            maybe = f"; if it is now {' or '.join(added)}, declare that with Alias({name!r})"
            yield f"DROPS    {where}: its stored values are lost{maybe if added else ''}"
        elif one.change == "narrowed":
            yield f"DROPS    {where}: a stored {one.former} cannot be read, as it is no member now"
        elif one.change == "added":
            yield f"ADDS     {where}: stored values get its default"
        else:
            yield f"RENAMES  {where}: was {one.former}"


def _keyed_by(reader: VersionReader) -> str:
    """Return the key columns of each input, where they are stored."""
    inputs = KeyedBy.of(reader.manifests[0]).inputs
    return "".join(f", keyed by {', '.join(map(str, columns))}" for columns in inputs)


def _key_misfit(reader: VersionReader, ddl: str | None) -> str:
    """Return why keys of the type ``ddl`` do not match the stored keys; empty if they do."""
    stored = key_type_of(reader.manifests)
    if ddl is None or stored is None:
        return ""
    declared = KeyType.of(ddl)
    if declared.description != stored.description:
        return (
            f"the key was stored as {describe_type(stored.description)}, and {ddl!r} is "
            f"{describe_type(declared.description)}; keys do not migrate: cast the column, or give "
            "the operator another uid"
        )
    try:
        KeyedBy([declared.columns]).check(reader.manifests, reader.manifests[0].uid)
    except StateMigrationError as error:
        return str(error)
    return ""
