"""``forebay state import``: make an operator of tables, or mend the state of a stopped query."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import click

from forebay_cli.options.conf import conf_values
from forebay_cli.options.function import loaded_function
from forebay_cli.options.operators import query_option, stored_operator, uid_option
from forebay_cli.options.state_directory import state_dir_option
from forebay_cli.output.progress import shown_progress
from forebay_cli.output.report import json_option, print_json
from forebay_cli.state.input_tables import input_tables
from forebay_state_api.errors import ConfigurationError
from forebay_state_processor.importing.first_version import Imported, import_tables, new_operator
from forebay_state_processor.importing.replacing import Replaced, open_next_version, replace_version
from forebay_state_processor.reading.key_text import keys_of
from forebay_state_processor.reading.snapshot import snapshot_of
from forebay_state_processor.reading.version_choice import OperatorSource

if TYPE_CHECKING:
    from forebay_state_processor.importing.first_version import NewOperator
    from forebay_state_processor.importing.tables import Tables
    from forebay_state_processor.reading.snapshot import Snapshot


@click.command("import")
@click.argument("tables", nargs=-1, metavar="[FILE] [STATE=FILE]...")
@click.option("--timers", metavar="FILE", help="The timers: all that there are afterwards.")
@click.option(
    "--function",
    metavar="MODULE:NAME",
    help="The query's function, whose states a new operator has.",
)
@click.option("--key", metavar="TYPE", help="The key column's type, or 'name type, name type'.")
@click.option("--like", metavar="QUERY", help="A query whose operator has the same states.")
@click.option("--like-uid", metavar="UID", help="The uid of that operator.", show_default="--uid")
@click.option(
    "--max-parallelism",
    type=click.IntRange(min=1),
    help="The new operator's number of key groups.",
    show_default="as --like has, or 128",
)
@click.option("--savepoint", metavar="NAME", help="Keep the new version under a name.")
@click.option(
    "--replace",
    metavar="CHECKPOINT",
    help="Mend state: the checkpoint location of the stopped query, whose next batch opens the "
    "copy.",
)
@click.option("--remove-key", "removed", multiple=True, help="A key to remove everywhere.")
@click.option("--dry-run", is_flag=True, help="Check everything, and write nothing.")
@state_dir_option
@query_option
@uid_option
@json_option
@conf_values
def import_state(
    *,
    tables: tuple[str, ...],
    timers: str | None,
    state_dir: str,
    query: str | None,
    uid: str | None,
    replace: str | None,
    removed: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
    conf: Mapping[str, str],
    **new: Any,
) -> None:
    """Make an operator of tables, or mend the version that a stopped query opens next.

    FILE is a Parquet or Arrow file, or a folder of them, as `forebay state export` writes it: with
    a column for each state, or, as STATE=FILE, with the rows of one state.

    Without --replace an operator is made that does not exist yet: --query and --uid name it, and
    --function with --key, or --like, give its types. The query that starts under that name begins
    with it.

    With --replace the rows replace rows of a stopped query; states without a file stay as they
    are. --remove-key removes a key from all states, and its timers. Stop the query before you
    export, and start it again afterwards.
    """
    if replace is None:
        made = _New(query=query, uid=uid, removed=removed, **new)
        made.check()
        given = input_tables(tables, timers)
        plain, text = made.make(state_dir, conf, given, dry_run=dry_run)
    else:
        _refuse_of_new(new)
        given = input_tables(tables, timers)
        read = stored_operator(state_dir, query, uid, conf)
        plain, text = _replace(read, replace, given, removed, dry_run=dry_run)
    if as_json:
        print_json(plain)
    else:
        click.echo(text)


@attrs.frozen(kw_only=True)
class _New:
    """The options of an operator that is made."""

    query: str | None
    uid: str | None
    removed: tuple[str, ...]
    function: str | None
    key: str | None
    like: str | None
    like_uid: str | None
    max_parallelism: int | None
    savepoint: str | None

    def check(self) -> None:
        """Refuse options that do not go together."""
        if self.removed:
            raise ConfigurationError("--remove-key needs --replace: a new operator has no keys yet")
        if self.query is None or self.uid is None:
            raise ConfigurationError(
                "name the operator that is made with --query and --uid; or pass --replace to mend "
                "the state of a stopped query"
            )
        if self.like is None and self.like_uid is not None:
            raise ConfigurationError("--like-uid needs --like")

    def make(
        self, state_dir: str, conf: Mapping[str, str], tables: Tables, *, dry_run: bool
    ) -> tuple[dict[str, Any], str]:
        """Import the tables; return the result as plain data and as text."""
        assert self.query is not None
        assert self.uid is not None
        at = OperatorSource.of(state_dir, query=self.query, uid=self.uid, conf=conf)
        new = self._operator(at)
        with shown_progress() as progress:
            done = import_tables(
                new, tables, savepoint=self.savepoint, dry_run=dry_run, progress=progress
            )
        plain = attrs.asdict(done) | {"savepoint": self.savepoint}
        return plain, self._text(done)

    def _operator(self, at: OperatorSource) -> NewOperator:
        function = None if self.function is None else loaded_function(self.function)
        with self._alike(at) as like:
            return new_operator(
                at,
                function=function,
                key=self.key,
                like=like,
                max_parallelism=self.max_parallelism,
            )

    @contextlib.contextmanager
    def _alike(self, at: OperatorSource) -> Iterator[Snapshot | None]:
        if self.like is None:
            yield None
            return
        read = OperatorSource.with_settings(
            at.storage.root, query=self.like, uid=self.like_uid or at.uid, settings=at.settings
        )
        with snapshot_of(read, read.choose(provisional=True)) as snapshot:
            yield snapshot

    def _text(self, done: Imported) -> str:
        what = _counted(done.rows, done.timers or None)
        if done.run is None:
            return f"{what}: fits a new operator; nothing was written"
        kept = "" if self.savepoint is None else f", kept as savepoint {self.savepoint}"
        return (
            f"operator {self.uid} of query {self.query} has its first version, of run "
            f"{done.run}{kept}: {what}. The query that starts under that name begins with it"
        )


def _refuse_of_new(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            raise ConfigurationError(f"{option} is for a new operator: leave it out with --replace")


def _replace(
    read: OperatorSource,
    checkpoint: str,
    tables: Tables,
    removed: tuple[str, ...],
    *,
    dry_run: bool,
) -> tuple[dict[str, Any], str]:
    """Replace a version; return the result as plain data and as text."""
    if not tables and not removed:
        raise ConfigurationError("nothing to import: name a file, or pass --remove-key")
    with open_next_version(read, checkpoint) as snapshot:
        keys = [_key(text, snapshot) for text in removed]
        with shown_progress() as progress:
            done = replace_version(
                snapshot, tables, without_keys=keys, dry_run=dry_run, progress=progress
            )
    plain = attrs.asdict(done) | {"replaced": snapshot.run, "removed_keys": keys}
    return plain, _replaced_text(done, snapshot, keys)


def _replaced_text(done: Replaced, snapshot: Snapshot, keys: list[Any]) -> str:
    what = _counted(done.rows, done.timers)
    what += f"{', ' if what else ''}without {len(keys)} keys" if keys else ""
    if done.run is None:
        return f"{what}: fits version {done.version}; nothing was written"
    return (
        f"version {done.version} has another copy, of run {done.run}: {what}. The query "
        f"goes on from it when it starts again; the copy of run {snapshot.run} stays until the "
        "janitor deletes it"
    )


def _counted(rows: Mapping[str, int], timers: int | None) -> str:
    found = [f"{count:,} rows of {state}" for state, count in rows.items()]
    return ", ".join([*found, *([] if timers is None else [f"{timers:,} timers"])])


def _key(text: str, snapshot: Snapshot) -> Any:
    """Return the stored key that ``text`` means, which some state must have."""
    candidates = keys_of(text, snapshot.key_codec)
    for key in candidates:
        for state in snapshot.states:
            if snapshot.holds(state, key):
                return key
    raise ConfigurationError(f"no state of version {snapshot.version} holds the key {text!r}")
