"""``forebay ticks``: let a stopped query begin or cease to have ticks at its next start.

On classic Spark the query's listener does the same when the query starts. A client of Spark Connect
does not see the checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from forebay_cli.options.conf import conf_options
from forebay_cli.output.report import json_option, print_json
from forebay_spark_runtime.driver.tick_entries import with_ticks_last
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.storage import open_storage

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_api.settings import Settings

_OFFSETS = "offsets"


@click.command("ticks")
@click.argument("checkpoint")
@click.option(
    "--operators",
    type=click.IntRange(min=0),
    required=True,
    metavar="N",
    help="The number of operators that will have ticks=; 0 without ticks.",
)
@json_option
@conf_options
def ticks_command(checkpoint: str, *, operators: int, settings: Settings, as_json: bool) -> None:
    """Let a stopped query of Spark Connect begin or cease to have ticks at its next start.

    CHECKPOINT is the query's checkpoint location. The last two entries of its offset log get or
    lose the offsets of ticks, which have to be the query's last sources. Stop the query first. On
    classic Spark the query's start does this by itself.
    """
    storage = open_storage(checkpoint, settings.storage_options())
    try:
        changed = edit(storage, operators)
    except ConfigurationError as error:
        raise ConfigurationError(f"the query of {checkpoint}: {error}") from None
    if as_json:
        print_json({"batches": changed, "operators": operators})
    elif changed:
        shown = " and ".join(f"{batch:,}" for batch in changed)
        click.echo(f"batch {shown}: the operators with ticks are {operators:,} now")
    else:
        click.echo(f"nothing was changed: the operators with ticks are {operators:,} already")


def edit(checkpoint: ObjectStorage, operators: int) -> list[int]:
    """Give the last two entries the offsets of as many operators with ticks.

    Returns the batches whose entries were replaced. Both are checked before one is. Raises
    `ConfigurationError` if there is no offset log, or if another source would change.
    """
    names = (info.name.rpartition("/")[2] for info in checkpoint.list(_OFFSETS))
    batches = sorted(int(name) for name in names if name.isdecimal())[-2:]
    if not batches:
        raise ConfigurationError(
            "it has no offset log. Either this is not the checkpoint of a stream, or it has not "
            "begun a micro-batch yet, and can start with ticks= and without"
        )
    changed = {}
    for batch in batches:
        entry = checkpoint.get(f"{_OFFSETS}/{batch}").decode()
        changed[batch] = with_ticks_last(entry, operators)
    found = [(batch, entry) for batch, entry in changed.items() if entry is not None]
    for batch, entry in found:
        # Hadoop's local file systems compare a file with its sums, if it has them.
        checkpoint.delete([f"{_OFFSETS}/.{batch}.crc"])
        checkpoint.put(f"{_OFFSETS}/{batch}", entry.encode())
    return [batch for batch, _ in found]
