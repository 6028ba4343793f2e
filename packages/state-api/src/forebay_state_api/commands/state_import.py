"""``forebay state import``: mend the state of a stopped query."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from forebay_state_api.commands.key_text import keys_of
from forebay_state_api.commands.progress import shown_progress
from forebay_state_api.commands.report import json_option, print_json
from forebay_state_api.commands.state_source import StateSource, state_source
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.importing.replacing import open_next_version, replace_version
from forebay_state_api.reading.arrow_types import arrow
from forebay_state_api.reading.snapshot import Snapshot

if TYPE_CHECKING:
    import pyarrow as pa

_READ: Final = {"parquet": "parquet", "arrow": "arrow", "feather": "arrow"}


@click.command("import")
@click.argument("tables", nargs=-1, metavar="[STATE=FILE]...")
@click.option(
    "--replace",
    required=True,
    metavar="CHECKPOINT",
    help="The checkpoint location of the stopped query, whose next batch opens the copy.",
)
@click.option("--remove-key", "removed", multiple=True, help="A key to remove everywhere.")
@click.option("--dry-run", is_flag=True, help="Check everything, and write nothing.")
@json_option
@state_source
def import_state(
    *,
    tables: tuple[str, ...],
    replace: str,
    removed: tuple[str, ...],
    source: StateSource,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Replace the version that a stopped query opens next by an edited copy of it.

    Each FILE is a Parquet or Arrow file with all rows of a STATE, as `forebay state export --state`
    writes them; states without a file stay as they are. --remove-key removes a key from all states,
    and its timers. Stop the query before you export, and start it again afterwards.
    """
    read = dict(_named(one) for one in tables)
    if not read and not removed:
        raise ConfigurationError("nothing to import: name STATE=FILE, or pass --remove-key")
    with open_next_version(source.read, replace) as snapshot:
        keys = [_key(text, snapshot) for text in removed]
        with shown_progress() as progress:
            done = replace_version(
                snapshot,
                tables={state: _table(path) for state, path in read.items()},
                without_keys=keys,
                dry_run=dry_run,
                progress=progress,
            )
    if as_json:
        print_json(
            {
                "version": done.version,
                "replaced": snapshot.run,
                "run": done.run,
                "rows": done.rows,
                "removed_keys": keys,
            }
        )
        return
    what = [f"{rows:,} rows of {state}" for state, rows in done.rows.items()]
    what += [f"without {len(keys)} keys"] if keys else []
    if done.run is None:
        click.echo(f"{', '.join(what)}: fits version {done.version}; nothing was written")
        return
    click.echo(
        f"version {done.version} has another copy, of run {done.run}: {', '.join(what)}. The query "
        f"goes on from it when it starts again; the copy of run {snapshot.run} stays until the "
        "janitor deletes it"
    )


def _named(text: str) -> tuple[str, str]:
    state, separator, path = text.partition("=")
    if not separator or not state or not path:
        raise ConfigurationError(
            f"{text!r} is not of the form STATE=FILE, as in total=total.parquet"
        )
    return state, path


def _table(path: str) -> pa.Table:
    """Read a file."""
    lib: Any = arrow()
    form = _READ.get(path.rpartition(".")[2].lower())
    if form is None:
        raise ConfigurationError(f"{path}: a table is a .parquet or an .arrow file")
    if not Path(path).is_file():
        raise ConfigurationError(f"there is no file {path}")
    try:
        if form == "parquet":
            import pyarrow.parquet as pq

            return pq.read_table(path)
        import pyarrow.ipc

        with pyarrow.ipc.open_file(path) as reader:
            return reader.read_all()
    except (lib.ArrowInvalid, OSError) as error:
        raise ConfigurationError(f"{path} is not a {form} file: {error}") from error


def _key(text: str, snapshot: Snapshot) -> Any:
    """Return the stored key that ``text`` means, which some state must have."""
    candidates = keys_of(text, snapshot.key_codec)
    for key in candidates:
        for state in snapshot.states:
            if snapshot.holds(state, key):
                return key
    raise ConfigurationError(f"no state of version {snapshot.version} holds the key {text!r}")
