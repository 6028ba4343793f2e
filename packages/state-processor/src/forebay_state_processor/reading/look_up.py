"""Look up the content of an operator's states under a key that is given as text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from forebay_state_processor.reading.json_keys import namespace_from_json
from forebay_state_processor.reading.key_text import keys_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay_state_processor.reading.rows import StateRow
    from forebay_state_processor.reading.snapshot import Snapshot


def namespace_of(text: str | None) -> Any:
    """Return the namespace that text means: JSON, or else the text itself."""
    if text is None:
        return None
    try:
        json.loads(text)
    except ValueError:
        return text
    except RecursionError:  # it is JSON, as far as it was read
        pass
    return namespace_from_json(text)


def found_rows(
    snapshot: Snapshot, text: str, states: Sequence[str], namespace: Any
) -> tuple[Any, dict[str, StateRow]]:
    """Return the key that ``text`` means, and the row of each state that has content under it."""
    candidates = keys_of(text, snapshot.key_codec)
    for key in candidates:
        rows = {name: snapshot.rows_of(name, [key], namespace)[0] for name in states}
        found = {name: row for name, row in rows.items() if row is not None}
        if found:
            return key, found
    return candidates[0], {}
