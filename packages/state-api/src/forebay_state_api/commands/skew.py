"""``forebay state skew``: show how evenly an operator's state is spread over its subtasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import click

from forebay_state_api.commands.conf_options import conf_options
from forebay_state_api.commands.progress import shown_progress
from forebay_state_api.commands.report import json_option, print_json, print_table
from forebay_state_api.commands.state_directory import state_dir_option, state_directory
from forebay_state_api.versions.folder import OperatorStorage
from forebay_state_api.versions.layout import operator_folder
from forebay_state_api.versions.reader import open_version

if TYPE_CHECKING:
    from forebay_state_api.keys import KeyGroupRange
    from forebay_state_api.settings import Settings
    from forebay_state_api.versions.manifest import Manifest


@attrs.frozen(kw_only=True)
class Share:
    """One subtask's share of the state."""

    subtask: int
    range: KeyGroupRange
    keys: int | None
    """Cells in all states; ``None`` if the backend does not count them."""
    bytes: int
    """Size of all files that it reads, and of what its version occupies elsewhere. After a rescale,
    a file that several subtasks read counts in part for each."""

    @property
    def weight(self) -> int:
        """The number for comparing subtasks: keys if they are known, else bytes."""
        return self.bytes if self.keys is None else self.keys


def shares_of(manifests: Sequence[Manifest]) -> list[Share]:
    """Return one share for each subtask, in subtask order."""
    ordered = sorted(manifests, key=lambda manifest: manifest.made.subtask)
    counted = all(manifest.metrics.get("keys") is not None for manifest in ordered)
    return [
        Share(
            subtask=manifest.made.subtask,
            range=manifest.made.range,
            keys=manifest.metrics["keys"] if counted else None,
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
@state_dir_option
@click.option("--query", required=True, help="The query's id, or its name.")
@click.option("--uid", required=True, help="The operator's uid.")
@click.option("--version", type=click.IntRange(min=1), help="Default: the newest complete one.")
@json_option
@conf_options
def show_skew(
    state_dir: str,
    query: str,
    uid: str,
    version: int | None,
    settings: Settings,
    *,
    as_json: bool,
) -> None:
    """Print each subtask's share of an operator's state, and the largest compared to the mean."""
    root = state_directory(state_dir, settings)
    storage = OperatorStorage(root, operator_folder(query, uid))
    with (
        shown_progress() as progress,
        open_version(storage, uid=uid, version=version, progress=progress) as reader,
    ):
        shares, shown = shares_of(reader.manifests), reader.version
    if as_json:
        subtasks = [attrs.asdict(share) for share in shares]
        print_json({"version": shown, "skew": skew_of(shares), "subtasks": subtasks})
        return
    click.echo(f"version {shown}, {len(shares)} subtask(s)")
    mean = sum(share.weight for share in shares) / len(shares) or 1.0
    rows = [
        (
            share.subtask,
            f"{share.range.start}..{share.range.end}",
            share.keys,
            share.bytes,
            f"{share.weight / mean:.2f}",
        )
        for share in shares
    ]
    print_table(("subtask", "key groups", "keys", "bytes", "of the mean"), rows)
    click.echo(f"skew {skew_of(shares):.2f} (the largest over the mean; 1 is even)")
