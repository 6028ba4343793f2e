"""The part of a bug report about one operator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_cli.state.schema import plain_states
from forebay_cli.state.skew import shares_of, skew_of
from forebay_engine.versions.cleaning.deleted_figures import KEPT_VERSIONS
from forebay_engine.versions.format.key_types import key_type_text
from forebay_engine.versions.format.manifest import Manifest, read_manifest
from forebay_state_api.contract.object_storage import ObjectNotFoundError
from forebay_state_api.errors import CorruptStateError
from forebay_state_processor.observing import (
    HistoryReader,
    OperatorListing,
    OperatorWatch,
    StoredOperator,
    key_groups_of,
)
from forebay_state_processor.observing.manifest_shape import manifest_shape
from forebay_state_processor.observing.plain_view import plain_operator, plain_version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_api.progress import Progress

MANIFESTS: Final = 50
"""The newest manifests whose shape is taken, unless one version has more."""


def bundled_operator(
    operator: StoredOperator, root: ObjectStorage, now: datetime, progress: Progress
) -> Mapping[str, Any]:
    """Return file → plain data: what a bug report holds of an operator, without user data."""
    storage = operator.storage(root)
    view = OperatorWatch(storage).view()
    timeline = HistoryReader(storage).timeline(view.listing, KEPT_VERSIONS)
    summary = plain_operator(operator, view, now)
    # The names of savepoints are texts of users.
    summary["pins"]["savepoints"] = len(view.listing.savepoints)
    manifests = _manifests(storage, _newest(view.listing), progress)
    return {
        "summary": {**summary, "objects": _objects(view.listing)},
        "versions": [plain_version(one) for one in timeline.versions],
        "abandoned": [plain_version(one) for one in timeline.abandoned],
        "manifests": [
            manifest_shape(one) if isinstance(one, Manifest) else one for one in manifests
        ],
        **_of_version([one for one in manifests if isinstance(one, Manifest)], view.listing),
    }


def _newest(listing: OperatorListing) -> Sequence[str]:
    """Return the names of manifests, `MANIFESTS` or more: all of the newest version come first.

    The newest version need not have the highest number, if the query went back.
    """
    made = [one for one in listing.made if one.manifest]
    ordered = sorted(made, key=lambda one: (-one.by.version, -one.by.epoch, one.by.subtask))
    newest = listing.timeline.newest
    whole = [] if newest is None else [one.manifest for one in newest.subtasks]
    names = dict.fromkeys([*whole, *(one.name for one in ordered)])
    return [*names][: max(MANIFESTS, len(whole))]


def _manifests(
    storage: ObjectStorage, names: Sequence[str], progress: Progress
) -> Sequence[Manifest | str]:
    """Return manifests, or why one could not be read."""
    progress.stage("reading manifests", len(names))
    found: list[Manifest | str] = []
    for name in names:
        try:
            found.append(read_manifest(storage, name))
        except ObjectNotFoundError:
            found.append("cleared meanwhile")
        except CorruptStateError:
            found.append("damaged")
        progress.advance()
    return found


def _of_version(manifests: Sequence[Manifest], listing: OperatorListing) -> Mapping[str, Any]:
    """Return states and skew of the newest complete version, if all its manifests were read."""
    newest = listing.timeline.newest
    named = set() if newest is None else {one.manifest for one in newest.subtasks}
    whole = [one for one in manifests if any(one.id in name for name in named)]
    if newest is None or len(whole) < len(named):
        return {}
    shares = shares_of(whole)
    return {
        "states": {
            "key": key_type_text(whole),
            "states": plain_states(whole),
        },
        "skew": {
            "skew": skew_of(shares),
            "subtasks": [attrs.asdict(share) for share in shares],
            "key_groups": attrs.asdict(key_groups_of(whole)),
        },
    }


def _objects(listing: OperatorListing) -> Mapping[str, Any]:
    return {
        folder: {"objects": len(infos), "bytes": sum(info.size for info in infos)}
        for folder, infos in listing.objects.items()
    }
