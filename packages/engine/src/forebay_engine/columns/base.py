"""The base of all states of a batch function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from forebay_engine.columns.access import Access

if TYPE_CHECKING:
    from forebay_engine.columns.call import BatchCall
    from forebay_engine.execution.declared_state import DeclaredState
    from forebay_engine.execution.engine_interface import StateHost


class BatchState:
    """A state that is read and written for many keys at once."""

    def __init__(self, state: DeclaredState, host: StateHost, call: Callable[[], Any]) -> None:
        """``call`` returns the running `BatchCall`, or ``None`` between calls."""
        self._state: Final = state
        self._host: Final = host
        self._what: Final = f"state {state.descriptor.name!r}"
        self._access: Final = Access(self._what, host.context, call)

    def __iter__(self) -> Any:
        """Refuse to iterate: a state is read for ``ctx.groups``."""
        raise TypeError(f"{self._what} has no iterator: get_many(ctx.groups) reads it")

    def __getattr__(self, name: str) -> Any:
        """Explain a method of the other face."""
        if name.startswith("_"):
            raise AttributeError(name)
        known = ", ".join(one for one in dir(type(self)) if one.endswith("_many"))
        raise AttributeError(
            f"{self._what} of a batch function has no {name!r}; it has {known}. value(), get(), "
            "update() and add() are of functions of one row",
            name=name,
            obj=self,
        )

    # -- the engine's -----------------------------------------------------------------------------

    def bind(self, namespace: Any) -> None:
        """Make a namespace the current one, to which accesses belong."""
        raise NotImplementedError

    def flush(self, call: BatchCall, following: BatchCall | None) -> int:  # noqa: ARG002 - see `BatchPointState`
        """Give what the call has staged to the table; return the number of keys.

        ``following`` is the next call, if its state is read ahead.
        """
        return 0

    def discard(self) -> None:
        """Forget what the call has staged, after a failure."""

    def count_accesses(self) -> None:
        """Pass the number of accesses on to the clean-up."""
