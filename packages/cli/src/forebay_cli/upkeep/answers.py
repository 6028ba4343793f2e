"""``forebay answers``: delete answers that are kept of calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from forebay_cli.options.conf import conf_options
from forebay_cli.options.operators import of_query_option, of_uid_option
from forebay_cli.options.state_directory import state_dir_option, state_directory
from forebay_cli.output.report import json_option, print_json
from forebay_engine.journal.reader import listed_answers
from forebay_engine.versions.format.folder import OperatorStorage
from forebay_engine.versions.format.layout import KEPT_ANSWERS, waits_folder
from forebay_state_api.contract.file_names import DATA
from forebay_state_processor.observing.operators import stored_operators

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_api.settings import Settings


@click.group("answers")
def answers() -> None:
    """Delete answers that ctx.kept_call and keep_answers= keep."""


@answers.command("drop")
@state_dir_option
@of_query_option
@of_uid_option
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, and delete nothing.")
@json_option
@conf_options
def drop(
    state_dir: str,
    query: str | None,
    uid: str | None,
    settings: Settings,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Delete kept answers: a micro-batch that is repeated makes their calls again.

    For answers with which a job fails, and for personal data. A running job is not disturbed: an
    attempt that has begun may use what it has read.
    """
    root = state_directory(state_dir, settings)
    names: list[str] = []
    for storage in _folders(root, query, uid):
        found = [name.text() for name in listed_answers(storage, DATA)]
        if not dry_run:
            storage.delete(found)
        names += [f"{storage.folder}/{name}" for name in found]
    _report(names, dry_run=dry_run, as_json=as_json)


def _folders(root: ObjectStorage, query: str | None, uid: str | None) -> Iterator[OperatorStorage]:
    """Yield the folders of keyed operators, and of ordered waits, with these names."""
    for one in stored_operators(root, query=query, uid=uid):
        yield one.storage(root)
    for one in stored_operators(root.child(KEPT_ANSWERS), query=query, uid=uid):
        yield OperatorStorage(root, waits_folder(one.query, one.uid))


def _report(names: Sequence[str], *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json({"names": names, "dry_run": dry_run})
        return
    for name in names:
        click.echo(name)
    click.echo(f"{'would delete' if dry_run else 'deleted'} {len(names)} object(s)")
