"""``forebay state skew``: show how evenly an operator's state is spread over its subtasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

from forebay_cli.options.operators import operator_options
from forebay_cli.output.progress import shown_progress
from forebay_cli.output.report import json_option, print_json, print_table
from forebay_cli.state.shown_state import finality_text
from forebay_cli.state.source import StateSource, provisional_option, version_option
from forebay_engine.versions.choosing.reader import open_version
from forebay_state_processor.observing.key_groups import KeyGroups, key_groups_of
from forebay_state_processor.reading.key_counts import keys_by_group
from forebay_state_processor.reading.snapshot import snapshot_of
from forebay_state_processor.reading.version_choice import OperatorSource

if TYPE_CHECKING:
    from forebay_engine.versions.choosing.finality import ShownVersion
    from forebay_engine.versions.format.manifest import Manifest
    from forebay_state_api.keys import KeyGroupRange
    from forebay_state_api.progress import Progress

_LARGEST: Final = 10
"""Number of key groups that are shown by default."""
_EQUAL_PARTS: Final = (
    "files hold all key groups of a subtask: bytes are equal parts; --count-keys counts keys"
)


@attrs.frozen(kw_only=True)
class Share:
    """One subtask's share of the state."""

    subtask: int
    range: KeyGroupRange
    cells: int | None
    """Cells in all states, a key counting once in each of them and in each namespace; ``None`` if
    the backend does not count them."""
    keys: int | None
    """Keys with any state; ``None`` unless they were counted."""
    bytes: int
    """Size of all files that it reads, and of what its version occupies elsewhere. After a rescale,
    a file that several subtasks read counts in part for each."""

    @property
    def weight(self) -> int:
        """The number for comparing subtasks: keys or cells if they are known, else bytes."""
        if self.keys is not None:
            return self.keys
        return self.bytes if self.cells is None else self.cells


def shares_of(manifests: Sequence[Manifest], keys: Sequence[int] | None = None) -> list[Share]:
    """Return one share for each subtask, in subtask order; ``keys`` are numbers by key group."""
    ordered = sorted(manifests, key=lambda manifest: manifest.made.subtask)
    counted = all(manifest.metrics.get("keys") is not None for manifest in ordered)
    return [
        Share(
            subtask=manifest.made.subtask,
            range=manifest.made.range,
            cells=manifest.metrics["keys"] if counted else None,
            keys=None if keys is None else sum(keys[group] for group in manifest.made.range),
            bytes=round(sum(_part(manifest, ordered))) + manifest.bytes_elsewhere,
        )
        for manifest in ordered
    ]


def _part(manifest: Manifest, every: Sequence[Manifest]) -> list[float]:
    groups: dict[str, int] = {}
    for file in (file for one in every for file in one.files):
        groups[file.name] = groups.get(file.name, 0) + len(file.range)
    return [file.size * len(file.range) / groups[file.name] for file in manifest.files]


def skew_of(shares: Sequence[Share]) -> float:
    """Return the largest share divided by the mean share; 1 if the state is even or empty."""
    total = sum(share.weight for share in shares)
    return max(share.weight for share in shares) * len(shares) / total if total else 1.0


@click.command("skew")
@version_option
@provisional_option
@click.option("--count-keys", is_flag=True, help="Read the state and count keys, on any backend.")
@click.option("--all-groups", is_flag=True, help=f"Show all key groups, not {_LARGEST} of them.")
@json_option
@operator_options
def show_skew(
    *,
    version: str | None,
    provisional: bool,
    read: OperatorSource,
    count_keys: bool,
    all_groups: bool,
    as_json: bool,
) -> None:
    """Print each subtask's share of an operator's state, and the largest compared to the mean.

    Below it are the largest key groups: a key group is the smallest part that a rescale moves.
    Where files hold all key groups of a subtask, those with most keys or rows come first.
    """
    shown = StateSource(read=read, provisional=provisional, show_expired=True).choose(version)
    at = shown.at
    with (
        shown_progress() as progress,
        open_version(
            read.storage, uid=read.uid, version=at.version, run_key=at.run_key, progress=progress
        ) as reader,
    ):
        keys = _counted(read, shown, progress) if count_keys else None
        groups = key_groups_of(reader.manifests)
        shares = shares_of(reader.manifests, keys)
    if as_json:
        print_json(_plain(shown, shares, groups, keys))
        return
    click.echo(
        f"version {at.version} ({finality_text(final=shown.final)}), run {at.run_key}, "
        f"{len(shares)} subtask(s)"
    )
    _show_shares(shares)
    click.echo(f"skew {skew_of(shares):.2f} (the largest over the mean; 1 is even)")
    _show_groups(groups, keys, every=all_groups)


def _counted(read: OperatorSource, shown: ShownVersion, progress: Progress) -> Sequence[int]:
    with snapshot_of(read, shown, show_expired=True) as snapshot:
        return keys_by_group(snapshot, progress=progress)


def _plain(
    shown: ShownVersion,
    shares: Sequence[Share],
    groups: KeyGroups,
    keys: Sequence[int] | None,
) -> dict[str, Any]:
    return {
        "version": shown.at.version,
        "run": shown.at.run_key,
        "final": shown.final,
        "skew": skew_of(shares),
        "bytes_are_equal_parts": not groups.has_sizes,
        "subtasks": [attrs.asdict(share) for share in shares],
        "key_groups": [
            {
                "key_group": group,
                "bytes": round(groups.bytes[group]),
                "files": groups.files[group],
                "keys": None if keys is None else keys[group],
                "rows": None if groups.rows is None else groups.rows[group],
            }
            for group in range(len(groups.bytes))
        ],
    }


def _show_shares(shares: Sequence[Share]) -> None:
    mean = sum(share.weight for share in shares) / len(shares) or 1.0
    counts = {"cells": [one.cells for one in shares], "keys": [one.keys for one in shares]}
    known = {name: numbers for name, numbers in counts.items() if None not in numbers}
    rows = [
        (
            share.subtask,
            f"{share.range.start}..{share.range.end}",
            *(numbers[at] for numbers in known.values()),
            share.bytes,
            f"{share.weight / mean:.2f}",
        )
        for at, share in enumerate(shares)
    ]
    print_table(("subtask", "key groups", *known, "bytes", "of the mean"), rows)


def _show_groups(groups: KeyGroups, keys: Sequence[int] | None, *, every: bool) -> None:
    """Print key groups, ordered by the best figure that is known, the largest first."""
    columns: dict[str, Sequence[Any]] = {"bytes": [round(size) for size in groups.bytes]}
    columns["files"] = groups.files
    if keys is not None:
        columns["keys"] = keys
    if groups.rows is not None:
        columns["rows of the batch"] = groups.rows
    by = _ordering(groups, keys)
    order = sorted(range(len(groups.bytes)), key=lambda one: -by[one])
    shown = order if every else [one for one in order[:_LARGEST] if by[one]]
    rows = [(group, *(numbers[group] for numbers in columns.values())) for group in shown]
    click.echo("")
    if not groups.has_sizes:
        click.echo(_EQUAL_PARTS)
    if rows:
        print_table(("key group", *columns), rows)


def _ordering(groups: KeyGroups, keys: Sequence[int] | None) -> Sequence[float]:
    """Return the numbers that distinguish key groups: keys, bytes, or the batch's rows."""
    if keys is not None:
        return keys
    if groups.has_sizes:
        return groups.bytes
    return [0] * len(groups.bytes) if groups.rows is None else groups.rows
