"""The difference of two versions: their figures and files, and the keys that changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from forebay_console.pages.keys import stored_versions, text_of
from forebay_engine.versions.format.figures import ALL_COUNTS
from forebay_state_api.errors import ForebayError
from forebay_state_processor.reading.stored_states import states_of

if TYPE_CHECKING:
    from forebay_console.watching import OperatorView
    from forebay_console.watching.content import ContentReader
    from forebay_engine.versions.format.manifest import Manifest
    from forebay_state_processor.observing import VersionFigures
    from forebay_state_processor.reading.changes import Change

_ROWS: Final = 200
"""The most changes that are shown."""
_OFFERED: Final = 100
"""The most versions to choose from."""


def difference(
    operator: OperatorView, reader: ContentReader | None, asked: Mapping[str, str]
) -> Mapping[str, Any]:
    """Return the values for the template; without a reader keys are not shown."""
    versions = stored_versions(operator)[:_OFFERED]
    if len(versions) < 2:  # noqa: PLR2004 - nothing to compare
        return {"versions": versions, "allowed": reader is not None}
    newer = _chosen(versions, asked.get("newer"), versions[0])
    older = _chosen(versions, asked.get("older"), versions[1])
    before, after = operator.manifests(older), operator.manifests(newer)
    states = [*(states_of(after) if after else ()), *(states_of(before) if before else ())]
    return {
        "versions": versions,
        "allowed": reader is not None,
        "older": older,
        "newer": newer,
        "figures": _figures(older, newer),
        "files": _files(before, after),
        "states": list(dict.fromkeys(states)),
        "state": asked.get("state", ""),
        "key": asked.get("key", ""),
        **_changes(reader, older, newer, asked),
    }


def _chosen(
    versions: Sequence[VersionFigures], text: str | None, otherwise: VersionFigures
) -> VersionFigures:
    with suppress(ValueError):
        number = int(text or "")
        return next((one for one in versions if one.version == number), otherwise)
    return otherwise


def _figures(older: VersionFigures, newer: VersionFigures) -> Sequence[Mapping[str, Any]]:
    pairs = ((name, older.count(name), newer.count(name)) for name in ALL_COUNTS)
    return [
        {
            "name": name,
            "older": before,
            "newer": after,
            "more": None if before is None or after is None else after - before,
        }
        for name, before, after in pairs
        if before is not None or after is not None
    ]


def _files(before: Sequence[Manifest], after: Sequence[Manifest]) -> Mapping[str, Any]:
    old, new = (
        {file.name: file.size for manifest in side for file in manifest.files}
        for side in (before, after)
    )
    added, removed = new.keys() - old.keys(), old.keys() - new.keys()
    return {
        "kept": len(old.keys() & new.keys()),
        "added": len(added),
        "added_bytes": sum(new[name] for name in added),
        "removed": len(removed),
        "removed_bytes": sum(old[name] for name in removed),
    }


def _changes(
    reader: ContentReader | None,
    older: VersionFigures,
    newer: VersionFigures,
    asked: Mapping[str, str],
) -> Mapping[str, Any]:
    nothing: dict[str, Any] = {"changes": None, "rows": (), "problem": ""}
    if reader is None or not asked.get("state"):
        return nothing
    try:
        key = asked.get("key", "")
        found = reader.changes(older, newer, asked["state"], key=key, most=_ROWS)
    except ForebayError as error:
        return {**nothing, "problem": str(error)}
    return {"changes": found, "rows": [_row(change) for change in found.found], "problem": ""}


def _row(change: Change) -> Mapping[str, Any]:
    return {
        "key": text_of(change.key),
        "namespace": _text(change.namespace),
        "operation": change.operation.value,
        "user_key": _text(change.user_key),
        "old": _text(change.old),
        "value": _text(change.value),
    }


def _text(value: Any) -> str | None:
    return None if value is None else text_of(value)
