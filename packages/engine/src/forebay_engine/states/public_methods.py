"""Override all public methods of a kind of state at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from forebay_state_api.job.states import State

if TYPE_CHECKING:
    from forebay_engine.states.base import KeyedState

_OPERATORS: Final = frozenset(
    {"__iter__", "__getitem__", "__setitem__", "__delitem__", "__contains__"}
)


def overridden(
    state: type[KeyedState], override: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> dict[str, Callable[..., Any]]:
    """Return the methods that users call, by name, each as ``override`` returns it."""
    names = {
        name
        for base in state.__mro__
        if base.__module__ == State.__module__
        for name, found in vars(base).items()
        if callable(found) and (not name.startswith("_") or name in _OPERATORS)
    }
    return {name: override(getattr(state, name)) for name in names}
