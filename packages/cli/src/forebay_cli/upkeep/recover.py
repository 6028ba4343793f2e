"""``forebay recover``: show the stored timelines of an operator, and choose the one to continue."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from forebay_cli.options.operators import operator_options
from forebay_cli.output.progress import shown_progress
from forebay_cli.output.report import json_option, print_json, print_table
from forebay_engine.versions.choosing.heads import Head, list_heads, recovery_for
from forebay_engine.versions.choosing.recovery import put_recovery, read_recovery
from forebay_engine.versions.format.directory_contents import nothing_stored_error
from forebay_engine.versions.format.epochs import Epochs, list_epochs
from forebay_state_api.errors import ConfigurationError, ForebayError
from forebay_state_processor.reading.feed import ChangeFeed
from forebay_state_processor.reading.history_positions import Position
from forebay_state_processor.reading.version_choice import OperatorSource

if TYPE_CHECKING:
    from forebay_state_api.progress import Progress

_COLUMNS = ("run", "version", "batch", "made", "began at batch", "checkpoint", "application")


@click.command("recover")
@click.option("--choose", metavar="RUN", help="The run whose timeline continues.")
@json_option
@operator_options
def recover(*, choose: str | None, read: OperatorSource, as_json: bool) -> None:
    """Print the timelines of an operator's state, or choose the one that continues.

    There are several after a checkpoint was copied or set back, and after two drivers ran at once.
    Stop the query before you choose. An abandoned timeline stays stored until the janitor deletes
    it, and you can choose it again until then.
    """
    storage = read.storage
    epochs = list_epochs(storage)
    heads = list_heads(storage, epochs)
    if not heads:
        raise nothing_stored_error(storage, read.uid)
    if choose is None:
        _show(read, heads, epochs, as_json=as_json)
        return
    head = _chosen(heads, choose)
    put_recovery(storage, epochs, recovery_for(head, storage, epochs))
    others = len(heads) - 1
    if as_json:
        print_json({"run": head.run_key, "version": head.version, "left_behind": others})
        return
    click.echo(
        f"the timeline of run {head.run_key} continues, at version {head.version}; "
        f"{others} other timeline(s) left behind"
    )


def _chosen(heads: Sequence[Head], run_key: str) -> Head:
    found = [head for head in heads if head.run_key == run_key]
    if not found:
        known = ", ".join(head.run_key for head in heads)
        raise ConfigurationError(
            f"there is no timeline of a run {run_key!r}; there are timelines of: {known}"
        )
    return found[0]


def _show(read: OperatorSource, heads: Sequence[Head], epochs: Epochs, *, as_json: bool) -> None:
    recovery = read_recovery(read.storage, epochs)
    first, *others = heads
    feed = ChangeFeed(read, provisional=True)
    with shown_progress() as progress:
        differing = [0] + [_differing_keys(feed, first, one, progress) for one in others]
    found = [
        {
            **_described(head),
            "keys_differ": keys,
            "left_behind": not recovery.counts(head.run_key, head.version),
        }
        for head, keys in zip(heads, differing, strict=True)
    ]
    if as_json:
        print_json(found)
        return
    columns = [*_COLUMNS, f"keys unlike {first.run_key}", ""]
    print_table(columns, (_row(one) for one in found))
    if others:
        click.echo("stop the query, and choose the timeline that continues with --choose RUN")


def _differing_keys(feed: ChangeFeed, one: Head, other: Head, progress: Progress) -> int | None:
    """Return the number of keys that differ; ``None`` if a version cannot be read here."""
    ends = [Position(head.version, head.run_key) for head in (one, other)]
    try:
        with feed.between(*ends, undo=True, show_expired=True) as difference:
            return difference.count_keys(progress=progress)
    except ForebayError:
        return None


def _described(head: Head) -> dict[str, Any]:
    record = head.record
    return {
        "run": head.run_key,
        "version": head.version,
        "batch_time": datetime.fromtimestamp(head.batch_ms / 1_000, UTC) if head.batch_ms else None,
        "made": head.made,
        "since": None if record is None else record.since,
        "checkpoint": head.location,
        "application": None if record is None else record.app_id,
    }


def _row(found: dict[str, Any]) -> list[Any]:
    times = [_shown(found["batch_time"], "milliseconds"), _shown(found["made"], "seconds")]
    *others, keys, left = (value for name, value in found.items() if name not in _TIMES)
    run, version, *rest = others
    # Run keys and batch numbers are names, so they are printed without commas.
    shown = [run, str(version), *times, *(None if one is None else str(one) for one in rest)]
    return [*shown, keys, "left behind" if left else ""]


_TIMES = ("batch_time", "made")


def _shown(at: datetime | None, precision: str) -> str | None:
    return None if at is None else at.isoformat(sep=" ", timespec=precision)
