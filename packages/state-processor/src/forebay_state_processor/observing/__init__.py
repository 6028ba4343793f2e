"""A running job, as storage shows it: versions with their figures, sizes, pins, compaction.

Nothing here writes, pins or needs the job. `list_operator` makes one list request for an operator;
all other requests are for objects that its listing names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay_state_api.lazy_names import lazy_names

if TYPE_CHECKING:
    from forebay_state_processor.observing.compactions import CompactionFolder
    from forebay_state_processor.observing.deleted_versions import HistoryReader
    from forebay_state_processor.observing.directory import DirectoryWatch
    from forebay_state_processor.observing.figures_of_versions import SubtaskFigures, VersionFigures
    from forebay_state_processor.observing.key_groups import KeyGroups, key_groups_of
    from forebay_state_processor.observing.listing import (
        BatchInProgress,
        OperatorListing,
        list_operator,
    )
    from forebay_state_processor.observing.operators import (
        FoundOperators,
        StoredOperator,
        find_operators,
        stored_operators,
    )
    from forebay_state_processor.observing.paged_listing import PagedListing
    from forebay_state_processor.observing.symptoms import Symptom, symptoms_of
    from forebay_state_processor.observing.timeline import Timeline, timeline_of
    from forebay_state_processor.observing.watching import HotKeyGroups, OperatorView, OperatorWatch

__all__ = [
    "BatchInProgress",
    "CompactionFolder",
    "DirectoryWatch",
    "FoundOperators",
    "HistoryReader",
    "HotKeyGroups",
    "KeyGroups",
    "OperatorListing",
    "OperatorView",
    "OperatorWatch",
    "PagedListing",
    "StoredOperator",
    "SubtaskFigures",
    "Symptom",
    "Timeline",
    "VersionFigures",
    "find_operators",
    "key_groups_of",
    "list_operator",
    "stored_operators",
    "symptoms_of",
    "timeline_of",
]

_HOMES: Final = {
    "forebay_state_processor.observing.compactions": ("CompactionFolder",),
    "forebay_state_processor.observing.directory": ("DirectoryWatch",),
    "forebay_state_processor.observing.figures_of_versions": (
        "SubtaskFigures",
        "VersionFigures",
    ),
    "forebay_state_processor.observing.deleted_versions": ("HistoryReader",),
    "forebay_state_processor.observing.key_groups": (
        "KeyGroups",
        "key_groups_of",
    ),
    "forebay_state_processor.observing.listing": (
        "BatchInProgress",
        "OperatorListing",
        "list_operator",
    ),
    "forebay_state_processor.observing.operators": (
        "FoundOperators",
        "StoredOperator",
        "find_operators",
        "stored_operators",
    ),
    "forebay_state_processor.observing.paged_listing": ("PagedListing",),
    "forebay_state_processor.observing.symptoms": (
        "Symptom",
        "symptoms_of",
    ),
    "forebay_state_processor.observing.timeline": (
        "Timeline",
        "timeline_of",
    ),
    "forebay_state_processor.observing.watching": (
        "HotKeyGroups",
        "OperatorView",
        "OperatorWatch",
    ),
}
"""Module → its public names, imported on first use: a command needs few of them."""

__getattr__ = lazy_names(__name__, _HOMES)
