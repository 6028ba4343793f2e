"""``forebay janitor`` and ``forebay doctor``: delete old versions, and probe a storage."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import attrs
import click

from forebay_cli.options.conf import conf_options
from forebay_cli.options.durations import duration
from forebay_cli.options.operators import operator_options
from forebay_cli.options.state_directory import state_dir_option, state_directory
from forebay_cli.output.progress import shown_progress
from forebay_cli.output.report import json_option, print_findings, print_json
from forebay_engine.versions.choosing.reader import open_version
from forebay_engine.versions.choosing.timeline import newest_complete
from forebay_engine.versions.cleaning.janitor import Janitor, JanitorPass
from forebay_engine.versions.cleaning.storage_probe import ProbeFinding, examine
from forebay_engine.versions.format.directory_contents import nothing_stored_error
from forebay_engine.versions.format.epochs import list_epochs
from forebay_state_api.errors import UnknownPluginError
from forebay_state_api.plugins import plugins
from forebay_state_api.settings import MOST_RETENTION, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from forebay_state_processor.reading.version_choice import OperatorSource


@click.command("janitor")
@click.option(
    "--retention",
    type=click.IntRange(1, MOST_RETENTION),
    default=10,
    show_default=True,
    help="Versions kept.",
)
@click.option(
    "--min-age",
    callback=duration,
    default="1h",
    show_default=True,
    help="Nothing younger is deleted.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, and delete nothing.")
@json_option
@operator_options
def janitor(
    *, retention: int, min_age: timedelta, read: OperatorSource, dry_run: bool, as_json: bool
) -> None:
    """Delete the parts of one operator's state that nobody can open any more."""
    sweep = _swept(read, retention, min_age, dry_run=dry_run)
    if not dry_run:
        _clear(read)
    if as_json:
        plain = attrs.asdict(sweep)
        print_json({**plain, "names": list(sweep.names), "dry_run": dry_run})
        return
    for name in sweep.names:
        click.echo(name)
    done = "would delete" if dry_run else "deleted"
    click.echo(f"{done} {len(sweep.names)} object(s); versions from {sweep.base} on stay")
    if sweep.overtaken:
        click.echo("a newer run of the query appeared: stopped early, run this again")


def _swept(
    read: OperatorSource, retention: int, min_age: timedelta, *, dry_run: bool
) -> JanitorPass:
    storage = read.storage
    epochs = list_epochs(storage)
    newest, version = epochs.newest(), newest_complete(storage, epochs)
    if newest is None or version is None:
        raise nothing_stored_error(storage, read.uid)
    with shown_progress() as progress:
        sweeper = Janitor(
            storage,
            run_key=newest.run_key,
            retention=retention,
            min_age=min_age,
            dry_run=dry_run,
            progress=progress,
        )
        return sweeper.sweep(version.version)


def _clear(read: OperatorSource) -> None:
    """Have the backend that stores the operator delete what it holds outside its files."""
    with open_version(read.storage, uid=read.uid) as reader:
        name = reader.manifests[0].backend
    try:
        backend = plugins().backend(name)
    except UnknownPluginError:
        click.echo(f"the backend {name!r} is not installed here: what it keeps elsewhere stays")
        return
    budget_s = read.settings["storage.retry-budget"]
    backend.clear(read.storage, read.options_of(backend), retry_budget_s=budget_s)


@click.command("doctor")
@state_dir_option
@json_option
@conf_options
def doctor(state_dir: str, settings: Settings, *, as_json: bool) -> None:
    """Probe whether a storage behaves as versions require, and whether all plugins work.

    The exit status is 1 if something does not.
    """
    storage = state_directory(state_dir, settings)
    print_findings(itertools.chain(_examined_plugins(), examine(storage)), as_json=as_json)


def _examined_plugins() -> Iterator[ProbeFinding]:
    for plugin in sorted(plugins().installed(), key=lambda one: one.distribution):
        promise = f"all of the plugin {plugin.plugin!r} of {plugin.distribution} can be used"
        for problem in plugin.problems or ("",):
            yield ProbeFinding(promise, problem)
