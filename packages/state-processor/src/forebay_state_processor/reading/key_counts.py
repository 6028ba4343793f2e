"""Count the keys of a version, by key group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forebay_state_api.progress import SILENT, Progress

if TYPE_CHECKING:
    from forebay_state_api.keys import KeyGroupRange
    from forebay_state_processor.reading.version_content import VersionContent


def keys_by_group(content: VersionContent, *, progress: Progress = SILENT) -> list[int]:
    """Return the number of keys with any state in each key group, whatever their namespaces.

    Reads the version, and holds the keys of one subtask's key groups in memory.
    """
    counts = [0] * content.max_parallelism
    parts = content.opened.parts(content.key_groups)
    progress.stage("counting keys", len(parts))
    for part in parts:
        for group, _ in _keys_of(content, part):
            counts[group] += 1
        progress.advance()
    return counts


def _keys_of(content: VersionContent, part: KeyGroupRange) -> set[tuple[int, Any]]:
    address = None if content.key_codec is None else content.key_codec.address
    found: set[tuple[int, Any]] = set()
    for info in content.states.values():
        maker = content.row_maker(info)
        for changes in content.exported(info.spec, part):
            for row in maker.rows(changes):
                key = row.key if address is None else address(row.key)
                found.add((row.key_group, key))
    return found
