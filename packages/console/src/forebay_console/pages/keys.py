"""One key: its content in the newest version, and its history."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from forebay_state_api.errors import ForebayError
from forebay_state_processor.reading.arrow_types import jsonable

if TYPE_CHECKING:
    from forebay_console.watching import OperatorView
    from forebay_console.watching.content import ContentReader, KeyContent
    from forebay_state_processor.observing import VersionFigures

_VERSIONS: Final = 20
"""The most versions that a history looks at."""
_LONGEST: Final = 2_000
"""The most characters of a value that are shown."""


def keys(
    operator: OperatorView, reader: ContentReader | None, asked: Mapping[str, str]
) -> Mapping[str, Any]:
    """Return the values for the template; without a reader data are not shown."""
    text, namespace = asked.get("key", ""), asked.get("namespace", "")
    shown: dict[str, Any] = {
        "allowed": reader is not None,
        "key": text,
        "namespace": namespace,
        "content": None,
        "history": (),
        "looked_at": 0,
        "problem": "",
    }
    newest = operator.timeline.newest
    if reader is None or not text or newest is None:
        return shown
    try:
        content = reader.under(text, namespace or None, newest)
        versions = stored_versions(operator)[:_VERSIONS]
        history = reader.history(text, namespace or None, versions)
    except ForebayError as error:
        return {**shown, "problem": str(error)}
    return {
        **shown,
        "content": content,
        "version": newest,
        "rows": _rows(content),
        "states": list(content.kinds),
        "history": [(version, dict(_texts(found))) for version, found in history],
        "looked_at": len(versions),
    }


def stored_versions(operator: OperatorView) -> Sequence[VersionFigures]:
    """Return the versions whose content is stored, the newest first."""
    return operator.listing.timeline.versions


def text_of(value: Any) -> str:
    """Return a value as JSON, cut where it is very long."""
    text = json.dumps(jsonable(value), ensure_ascii=False)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]} \N{HORIZONTAL ELLIPSIS} ({len(text):,} characters)"


def _rows(content: KeyContent) -> Sequence[Mapping[str, Any]]:
    return [
        {
            "state": name,
            "kind": kind,
            "value": text_of(content.rows[name].value) if name in content.rows else None,
            "written": content.rows[name].written if name in content.rows else None,
        }
        for name, kind in content.kinds.items()
    ]


def _texts(content: KeyContent) -> Sequence[tuple[str, str]]:
    return [(name, text_of(row.value)) for name, row in content.rows.items()]
