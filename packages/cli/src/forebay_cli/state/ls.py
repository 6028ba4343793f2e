"""``forebay state ls``: the queries and operators of a state directory."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from forebay_cli.options.conf import conf_values
from forebay_cli.options.operators import of_query_option
from forebay_cli.options.state_directory import state_dir_option, state_directory
from forebay_cli.output.progress import shown_progress
from forebay_cli.output.report import json_option, print_json, print_table
from forebay_engine.versions.choosing.finality import newest_shown
from forebay_state_api.errors import CorruptStateError
from forebay_state_api.settings.redaction import redacted
from forebay_state_processor.observing.listing import list_operator
from forebay_state_processor.observing.operators import stored_operators
from forebay_state_processor.observing.quantities import seconds_text, size_text
from forebay_state_processor.reading.version_choice import reader_settings

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_processor.observing.operators import StoredOperator


@click.command("ls")
@state_dir_option
@of_query_option
@json_option
@conf_values
def list_state(
    state_dir: str, query: str | None, conf: Mapping[str, str], *, as_json: bool
) -> None:
    """List queries and their operators: versions, sizes, age, savepoints and readers.

    The size is the newest version's; the age is the time since it was committed. If the
    newest version of an operator is damaged, its error follows, and the exit status is 2.
    """
    root = state_directory(state_dir, reader_settings(conf))
    found = stored_operators(root, query=query)
    with shown_progress() as progress:
        progress.stage("reading operators", len(found))
        operators = []
        for one in found:
            operators.append(_operator(root, one))
            progress.advance()
    if as_json:
        print_json(operators)
    elif not operators:
        click.echo(f"{redacted(state_dir)} holds no state")
    else:
        print_table(
            ("query", "uid", "versions", "final", "size", "age", "subtasks", "savepoints", "pins"),
            map(_row, operators),
        )
    faults = [one["fault"] for one in operators if one["fault"] is not None]
    if faults:
        raise CorruptStateError("\n".join(faults))


def _operator(root: ObjectStorage, one: StoredOperator) -> dict[str, Any]:
    storage = one.storage(root)
    listing = list_operator(storage)
    newest = listing.timeline.newest
    versions = [version.version for version in listing.timeline.versions]
    final, fault = _final(storage)
    return {
        "query": one.query,
        "uid": one.uid,
        "oldest": min(versions, default=None),
        "newest": max(versions, default=None),
        "final": final,
        "fault": fault,
        "run": None if newest is None else newest.run_key,
        "bytes": listing.timeline.count("state_bytes"),
        "bytes_stored": listing.data_bytes,
        "committed": None if newest is None else newest.committed,
        "parallelism": None if newest is None else newest.parallelism,
        "max_parallelism": None if newest is None else newest.max_parallelism,
        "savepoints": list(listing.savepoints),
        "pins": len(listing.pins),
    }


def _final(storage: ObjectStorage) -> tuple[int | None, str | None]:
    """Return the newest final version, or the damage that hides it."""
    try:
        shown = newest_shown(storage, provisional=False)
    except CorruptStateError as fault:
        return None, str(fault)
    return None if shown is None else shown.at.version, None


def _row(one: Mapping[str, Any]) -> list[Any]:
    versions = None if one["newest"] is None else f"{one['oldest']}..{one['newest']}"
    return [
        one["query"],
        one["uid"],
        versions,
        one["final"] if one["fault"] is None else "damaged",
        size_text(one["bytes"]),
        _age(one["committed"]),
        one["parallelism"],
        len(one["savepoints"]),
        one["pins"],
    ]


def _age(since: datetime | None) -> str | None:
    """Return how long ago something was, in whole seconds."""
    return None if since is None else seconds_text(int((datetime.now(UTC) - since).total_seconds()))
