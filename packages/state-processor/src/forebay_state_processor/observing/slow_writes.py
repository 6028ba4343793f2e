"""Commits that write few bytes and still take long: storage is slow at writing, or throttles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay_engine.versions.format.operator_state_entries import OperatorStateContent
from forebay_state_api.contract.file_names import data_version

if TYPE_CHECKING:
    from forebay_engine.versions.format.figures import Figures
    from forebay_engine.versions.format.manifest import Manifest

SLOW_WRITE_MS: Final = 500
"""Milliseconds of the phase ``commit_files`` that are long for `_FEW_BYTES`."""
_FEW_BYTES: Final = 1_000_000
"""Bytes that need a request or two, and hardly any time to encode and to send."""


def wrote_little(figures: Figures) -> bool:
    """Return whether a commit wrote files, and few bytes; 0 bytes may be unreported ones."""
    return 0 < figures.counts.get("written_bytes", 0) <= _FEW_BYTES


def did_more(manifest: Manifest) -> bool:
    """Return whether a commit also compacted, or wrote much operator state."""
    files = OperatorStateContent.loaded(manifest.operator_state).files()
    own = [file.size for file in files if data_version(file.name) == manifest.made.version]
    return bool(manifest.metrics.get("compaction_stalled_seconds")) or sum(own) > _FEW_BYTES
