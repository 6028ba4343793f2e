"""``forebay janitor`` and ``forebay doctor``: clearing old versions, and probing a storage."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Final

import click

from forebay_state_api._conf_options import conf_options, settings_of
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.settings import DURATION
from forebay_state_api.storage import ObjectStorage, open_storage
from forebay_state_api.versions import layout
from forebay_state_api.versions.doctor import examine
from forebay_state_api.versions.epochs import list_epochs
from forebay_state_api.versions.folder import OperatorStorage
from forebay_state_api.versions.janitor import Janitor, Sweep
from forebay_state_api.versions.savepoint_commands import savepoint
from forebay_state_api.versions.timeline import newest_complete


def _duration(_: click.Context, __: click.Parameter, text: str) -> timedelta:
    try:
        return timedelta(seconds=DURATION.accept(text))
    except (TypeError, ValueError) as error:
        msg = f"{text!r} is not {DURATION.expected}"
        raise click.BadParameter(msg) from error


_state_dir = click.option(
    "--state-dir", required=True, help="The state directory: a path or a URL."
)


@click.command("janitor")
@_state_dir
@click.option("--query", required=True, help="The query's id.")
@click.option("--uid", required=True, help="The operator's uid.")
@click.option(
    "--retention", type=click.IntRange(min=1), default=10, show_default=True, help="Versions kept."
)
@click.option(
    "--min-age",
    callback=_duration,
    default="1h",
    show_default=True,
    help="Nothing younger is deleted.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, and delete nothing.")
@conf_options
def janitor(  # noqa: PLR0917 - click passes them by name
    state_dir: str,
    query: str,
    uid: str,
    retention: int,
    min_age: timedelta,
    conf: tuple[str, ...],
    properties_file: Path | None,
    *,
    dry_run: bool,
) -> None:
    """Delete what nobody can open any more of one operator's state."""
    root = _opened(state_dir, conf, properties_file)
    storage = OperatorStorage(root, layout.operator_folder(query, uid))
    sweep = _swept(storage, uid, retention, min_age, dry_run=dry_run)
    for name in sweep.names:
        click.echo(name)
    done = "would delete" if dry_run else "deleted"
    click.echo(f"{done} {len(sweep.names)} object(s); versions from {sweep.base} on stay")
    if sweep.overtaken:
        click.echo("a newer run of the query appeared: stopped early, run this again")


def _swept(
    storage: ObjectStorage, uid: str, retention: int, min_age: timedelta, *, dry_run: bool
) -> Sweep:
    epochs = list_epochs(storage)
    newest, version = epochs.newest(), newest_complete(storage, epochs)
    if newest is None or version is None:
        msg = f"no complete version of operator {uid!r} is stored in {storage.url}"
        raise ConfigurationError(msg)
    sweeper = Janitor(
        storage, run_key=newest.run_key, retention=retention, min_age=min_age, dry_run=dry_run
    )
    return sweeper.sweep(version.version)


@click.command("doctor")
@_state_dir
@conf_options
@click.pass_context
def doctor(
    context: click.Context, state_dir: str, conf: tuple[str, ...], properties_file: Path | None
) -> None:
    """Probe whether a storage does what versions rest on; exit status 1 if it does not."""
    healthy = True
    for finding in examine(_opened(state_dir, conf, properties_file)):
        healthy = healthy and not finding.problem
        click.echo(f"{'FAIL' if finding.problem else 'ok  '}  {finding.promise}")
        if finding.problem:
            click.echo(f"      {finding.problem}")
    if not healthy:
        context.exit(1)


def _opened(state_dir: str, conf: tuple[str, ...], properties_file: Path | None) -> ObjectStorage:
    """The state directory, with the storage settings that a job would have."""
    return open_storage(state_dir, settings_of(conf, properties_file).storage_options())


COMMANDS: Final[list[click.Command]] = [janitor, doctor, savepoint]
"""Sub-commands of ``forebay``."""
