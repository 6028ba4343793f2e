"""``forebay explain``: the reason for the duration of a micro-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs
import click

from forebay_cli.options.operators import operator_options
from forebay_cli.output.report import json_option, print_json
from forebay_engine.versions.cleaning.deleted_figures import KEPT_VERSIONS
from forebay_engine.versions.format.directory_contents import nothing_stored_error
from forebay_engine.versions.format.manifest import read_manifest
from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.errors import ConfigurationError
from forebay_state_processor.observing import HistoryReader, list_operator
from forebay_state_processor.observing.evidence import Evidence
from forebay_state_processor.observing.explaining import explain as explained
from forebay_state_processor.observing.explaining import slowest_of
from forebay_state_processor.observing.janitor_backlog import CHANGE, janitor_backlog
from forebay_state_processor.observing.request_costs import RequestCosts

if TYPE_CHECKING:
    from forebay_engine.versions.format.manifest import Manifest
    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_processor.observing import OperatorListing, Timeline, VersionFigures
    from forebay_state_processor.reading.version_choice import OperatorSource

_COMPARED: Final = 100
"""Versions among which the slowest one is found, and with which one is compared."""


@click.command("explain")
@click.option(
    "--batch",
    type=click.IntRange(min=0),
    help="The micro-batch.",
    show_default=f"the slowest of the last {_COMPARED}, if possible not the first after a start",
)
@json_option
@operator_options
def explain(*, batch: int | None, read: OperatorSource, as_json: bool) -> None:
    """Say in one paragraph why a micro-batch took long, and what changes it.

    It names the slowest phase and subtask, the likely cause and the setting, with their numbers.
    It also says if the janitor is behind, and if the query spends more on requests than on bytes.
    """
    storage = read.storage
    listing = list_operator(storage)
    timeline = _timeline(storage, listing, batch)
    if not timeline.versions:
        raise nothing_stored_error(storage, read.uid)
    version = _chosen(timeline, batch, storage.url)
    evidence = Evidence.of(version, timeline, _manifest(storage, version))
    if evidence is None:
        raise ConfigurationError(
            f"the times of batch {version.batch} in {storage.url} were not measured: an older "
            "release, or another runtime, made it"
        )
    found, backlog = explained(evidence), janitor_backlog(listing)
    warning = _request_costs(storage, listing, timeline)
    if as_json:
        shown = {**attrs.asdict(found), "janitor_backlog": backlog, "request_costs": warning}
        print_json({"query": read.query, "uid": read.uid, **shown})
        return
    click.echo(f"{read.query} / {read.uid}")
    click.echo(found.text)
    if backlog is not None:
        click.echo(f"Besides, the janitor is behind: {backlog}. What changes it: {CHANGE}.")
    if warning is not None:
        click.echo(f"Besides, {warning}")


def _request_costs(
    storage: ObjectStorage, listing: OperatorListing, timeline: Timeline
) -> str | None:
    """Return a sentence if requests cost too much; ``None`` for a directory, which bills none."""
    costs = RequestCosts.of(listing, timeline)
    return None if costs is None or "://" not in storage.url else costs.warning


def _timeline(storage: ObjectStorage, listing: OperatorListing, batch: int | None) -> Timeline:
    """Return the versions that are needed: the newest ones, and back to that before the batch's."""
    newest = listing.timeline.newest
    back = 0 if newest is None or batch is None else newest.version - batch + 1
    return HistoryReader(storage).timeline(listing, min(KEPT_VERSIONS, max(_COMPARED, back)))


def _chosen(timeline: Timeline, batch: int | None, url: str) -> VersionFigures:
    number = slowest_of(timeline, _COMPARED) if batch is None else batch
    if number is None:
        raise ConfigurationError(f"no version with measured times is stored in {url}")
    version = timeline.of_batch(number)
    if version is None:
        batches = [one.batch for one in timeline.versions]
        there = f"{min(batches)} to {max(batches)}" if batches else "none"
        raise ConfigurationError(
            f"the figures of batch {number} are not stored in {url}; there are: {there}"
        )
    return version


def _manifest(storage: ObjectStorage, version: VersionFigures) -> Manifest | None:
    """Return the manifest of the slowest subtask; ``None`` if the janitor has deleted it."""
    if version.slowest is None:
        return None
    try:
        return read_manifest(storage, version.slowest.manifest)
    except ObjectNotFoundError:
        return None
