"""A running job, as storage shows it: versions with their figures, sizes, pins, compaction.

Nothing here writes, pins or needs the job. `list_operator` makes one list request for an operator;
all other requests are for objects that its listing names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_state_api.lazy_names import import_on_first_use

if TYPE_CHECKING or not import_on_first_use(__name__):
    from forebay_state_processor.observing.compactions import CompactionFolder as CompactionFolder
    from forebay_state_processor.observing.deleted_versions import HistoryReader as HistoryReader
    from forebay_state_processor.observing.directory import DirectoryWatch as DirectoryWatch
    from forebay_state_processor.observing.figures_of_versions import (
        SubtaskFigures as SubtaskFigures,
        VersionFigures as VersionFigures,
    )
    from forebay_state_processor.observing.key_groups import (
        KeyGroups as KeyGroups,
        key_groups_of as key_groups_of,
    )
    from forebay_state_processor.observing.listing import (
        BatchInProgress as BatchInProgress,
        OperatorListing as OperatorListing,
        list_operator as list_operator,
    )
    from forebay_state_processor.observing.operators import (
        FoundOperators as FoundOperators,
        StoredOperator as StoredOperator,
        find_operators as find_operators,
        stored_operators as stored_operators,
    )
    from forebay_state_processor.observing.paged_listing import PagedListing as PagedListing
    from forebay_state_processor.observing.symptoms import (
        Symptom as Symptom,
        symptoms_of as symptoms_of,
    )
    from forebay_state_processor.observing.timeline import (
        Timeline as Timeline,
        timeline_of as timeline_of,
    )
    from forebay_state_processor.observing.watching import (
        HotKeyGroups as HotKeyGroups,
        OperatorView as OperatorView,
        OperatorWatch as OperatorWatch,
    )
