"""Functions over columns: rows by key, the state of many keys at once, and what runs them.

A `KeyedBatchFunction` gets `Rows` and a `BatchContext`, whose `Groups` are the rows by key; its
states are a `BatchValueState` and the like. The names are for annotations and tests. The room needs
NumPy and pyarrow (the extra ``columns``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_state_api.lazy_names import import_on_first_use

if TYPE_CHECKING or not import_on_first_use(__name__):
    from forebay_engine.columns.aggregates import Count as Count, Mean as Mean
    from forebay_engine.columns.context import BatchContext as BatchContext
    from forebay_engine.columns.groups import Groups as Groups
    from forebay_engine.columns.looped_states import (
        BatchListState as BatchListState,
        BatchMapState as BatchMapState,
        BatchSortedMapState as BatchSortedMapState,
    )
    from forebay_engine.columns.merging_states import (
        BatchAggregatingState as BatchAggregatingState,
        BatchReducingState as BatchReducingState,
    )
    from forebay_engine.columns.rows import Rows as Rows
    from forebay_engine.columns.states import BatchValueState as BatchValueState
    from forebay_engine.columns.timers import BatchTimers as BatchTimers
    from forebay_engine.columns.values import Fields as Fields
