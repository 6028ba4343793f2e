"""The kinds of keyed state, a row for each; backends know only their shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import methodcaller
from typing import Any, Final

import attrs

from forebay_engine.states.base import KeyedState
from forebay_engine.states.list import KeyedListState
from forebay_engine.states.map import KeyedMapState
from forebay_engine.states.reducing import KeyedAggregatingState, KeyedReducingState
from forebay_engine.states.sorted_map import KeyedSortedMapState
from forebay_engine.states.value import KeyedValueState
from forebay_state_api.contract.changes import Shape


@attrs.frozen
class StateKind:
    """The engine's implementation of one kind of descriptor."""

    name: str
    """The name in `StateDescriptor.kind`; stored with the state, so it never changes."""
    shape: Shape
    """The shape of the table."""
    state: type[KeyedState]
    """The class of the state object; `with_ttl` derives the class for a descriptor with a TTL."""
    read: Callable[[Any], Any]
    """Returns a state object's content under the current key, as plain data."""
    ordered: bool = False
    """Whether the map is read in the order of its keys, as `TableSpec.ordered`."""


_get: Final = methodcaller("get")


def _entries(state: Any) -> dict[Any, Any]:
    return dict(state.items())


KINDS: Final[Mapping[str, StateKind]] = {
    kind.name: kind
    for kind in (
        StateKind("value", Shape.POINT, KeyedValueState, methodcaller("value")),
        StateKind("list", Shape.LIST, KeyedListState, _get),
        StateKind("map", Shape.MAP, KeyedMapState, _entries),
        StateKind("sorted_map", Shape.MAP, KeyedSortedMapState, _entries, ordered=True),
        StateKind("reducing", Shape.POINT, KeyedReducingState, _get),
        StateKind("aggregating", Shape.POINT, KeyedAggregatingState, _get),
    )
}
