"""``forebay state diff``: what changed between two versions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final

import attrs
import click

from forebay_cli.options.key_groups import check_key_groups, key_groups_option
from forebay_cli.options.sizes import size_option
from forebay_cli.output.progress import shown_progress
from forebay_cli.output.report import json_option
from forebay_cli.state.shown_state import finality_text, limited, print_rows
from forebay_cli.state.source import NEWEST, StateSource, state_source
from forebay_engine.versions.choosing.finality import ShownVersion
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.keys import KeyGroupRange
from forebay_state_processor.reading.changes import Change
from forebay_state_processor.reading.difference import HELD_BYTES, Difference
from forebay_state_processor.reading.feed import ChangeFeed
from forebay_state_processor.reading.history_positions import START, Position
from forebay_state_processor.reading.key_text import keys_of
from forebay_state_processor.reading.look_up import namespace_of

_COLUMNS: Final = ("state", "key", "namespace", "operation", "user_key", "old", "value")
_OF_VERSION: Final = ("version", "run", "final")
"""Columns of JSON that name the version at --to, as the rows of the feed do."""


@click.command("diff")
@click.option("--from", "start", required=True, metavar="V", help="The older version.")
@click.option("--to", "end", metavar="V", help="The newer version.", show_default=NEWEST)
@click.option("--key", help="Only this key, by look-ups.")
@click.option("--namespace", help="With --key: its namespace.", show_default="the default one")
@click.option("--state", "states", multiple=True, help="A state.", show_default="all")
@click.option("--timers", is_flag=True, help="Show registered and removed timers, too.")
@key_groups_option
@size_option(
    "--held-bytes",
    default=HELD_BYTES,
    help="The memory for rows of the older version at a time; the versions are read in more passes "
    "if it is small.",
)
@click.option("--limit", type=click.IntRange(min=1), help="The most rows.", show_default="all")
@json_option
@state_source
def diff_versions(
    *,
    start: str,
    end: str | None,
    key: str | None,
    namespace: str | None,
    states: tuple[str, ...],
    key_groups: KeyGroupRange | None,
    held_bytes: int,
    limit: int | None,
    source: StateSource,
    timers: bool,
    as_json: bool,
) -> None:
    """Print what changed from one version to another.

    V is a number, a number and a run as in 7@1f0c2a9e6b3d4875, or a savepoint; 0 is the empty
    version. The versions may be of two timelines, and --to may be the older one.
    """
    wanted = _Wanted(key=key, namespace=namespace, key_groups=key_groups)
    feed = ChangeFeed(source.read, provisional=source.provisional)
    older, newer = source.choose_from_start(start), source.choose_from_start(end)
    click.echo(f"from {_version_text(older)} to {_version_text(newer)}", err=True)
    first, last = Position.of(older.at), Position.of(newer.at)
    with feed.between(
        first, last, undo=True, show_expired=source.show_expired, held_bytes=held_bytes
    ) as difference:
        if difference.max_parallelism:
            check_key_groups(key_groups, difference.max_parallelism)
        rows = wanted.rows(difference, states or difference.states)
        if timers:
            rows = chain(rows, wanted.timers(difference))
        if as_json:
            shown = [last.version, last.run, newer.final]
            with shown_progress() as progress:
                progress.stage("comparing")
                print_rows(
                    (*_COLUMNS, *_OF_VERSION),
                    (row + shown for row in _counted(islice(rows, limit), progress)),
                    as_json=True,
                )
            more = limit is not None and next(rows, None) is not None
        else:
            with shown_progress() as progress:
                progress.stage("comparing")
                found, more = limited(_counted(rows, progress), limit)
            print_rows(_COLUMNS, found, as_json=False)
        if more:
            click.echo(f"there are more changes than {limit}", err=True)


def _version_text(shown: ShownVersion) -> str:
    position = Position.of(shown.at)
    if position == START:
        return "version 0 (empty)"
    return f"version {position} ({finality_text(final=shown.final)})"


def _counted(rows: Iterator[Any], progress: Any) -> Iterator[Any]:
    for row in rows:
        progress.advance()
        yield row


@attrs.frozen(kw_only=True)
class _Wanted:
    """The keys whose changes are shown."""

    key: str | None
    namespace: str | None
    key_groups: KeyGroupRange | None

    def __attrs_post_init__(self) -> None:
        """Refuse options that do not go together."""
        if self.key is not None and self.key_groups is not None:
            raise ConfigurationError("pass one of --key and --key-groups, not both")

    def rows(self, difference: Difference, states: Sequence[str]) -> Iterator[list[Any]]:
        """Yield the changes of some states."""
        for state in states:
            for change in self._changes(difference, state):
                yield [
                    state,
                    change.key,
                    change.namespace,
                    change.operation.value,
                    change.user_key,
                    change.old,
                    change.value,
                ]

    def timers(self, difference: Difference) -> Iterator[list[Any]]:
        """Yield the timers that were registered or removed."""
        for change in difference.timers(key_groups=self.key_groups):
            timer = change.timer
            yield [
                f"timers ({timer.domain})",
                timer.key,
                timer.namespace,
                change.operation.value,
                timer.time,
                None,
                None,
            ]

    def _changes(self, difference: Difference, state: str) -> Iterator[Change]:
        if self.key is None:
            yield from difference.rows(state, key_groups=self.key_groups)
            return
        for candidate in keys_of(self.key, difference.key_codec):
            yield from difference.key_rows(state, candidate, namespace_of(self.namespace))
