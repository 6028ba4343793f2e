"""``.map_with_state`` and ``.flat_map_with_state``: a function of a row and its key's value.

The function gets the stored value of the row's key, or ``None`` if there is no value. It returns
the output and the new value; ``None`` clears the value.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final

from forebay_engine.execution.record_methods import Adapter
from forebay_state_api.codecs import codec_for
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.context import RuntimeContext
from forebay_state_api.job.descriptors import ValueStateDescriptor
from forebay_state_api.job.functions import Function, KeyedProcessFunction
from forebay_state_api.job.states import ValueState
from forebay_state_api.job.ttl import StateTtlConfig

STATE: Final = "value"
"""The name of the state."""


class MapWithState(Adapter, KeyedProcessFunction[Any, Any, Any]):
    """Calls ``fn(row, value)`` for each row; with ``many`` it returns a list of rows."""

    def __init__(
        self,
        fn: Any,
        *,
        many: bool,
        state_type: Any = None,
        ttl: StateTtlConfig | None = None,
        switch_ttl: bool = False,
    ) -> None:
        """Raise `ConfigurationError` unless it is a plain callable, and for an unknown type."""
        self.wrapped = fn
        self.method = "flat_map_with_state" if many else "map_with_state"
        self._fn: Callable[[Any, Any], Any] = fn
        self._many = many
        self._descriptor = ValueStateDescriptor(STATE, state_type, ttl=ttl, switch_ttl=switch_ttl)
        called = fn if inspect.isroutine(fn) else getattr(fn, "__call__", fn)  # noqa: B004 - to look into it
        if isinstance(fn, (Function, type)) or not callable(fn) or _is_asynchronous(called):
            raise ConfigurationError(
                f"{self.method} takes a plain callable fn(row, value), not {fn!r}; a function "
                "that awaits declares its states itself: use process"
            )
        codec_for(state_type, what=f"state_type= of {self.method}")

    def open(self, context: RuntimeContext) -> None:
        self._state: ValueState[Any] = context.get_state(self._descriptor)

    def process_element(self, row: Any, ctx: RuntimeContext) -> Any:  # noqa: ARG002 - the contract
        result = self._fn(row, self._state.value())
        if type(result) is not tuple or len(result) != 2:  # noqa: PLR2004 - what goes out, what stays
            raise TypeError(self._misfit(result))
        out, value = result
        if not self._many and not isinstance(out, (tuple, Mapping)):
            raise TypeError(self._misfit(result))
        self._state.update(value)
        return out if self._many else [out]

    def _misfit(self, result: Any) -> str:
        wanted = "(rows, value)" if self._many else "(row, value)"
        return f"the function of {self.method} returns {wanted}, and returned {result!r:.200}"


def _is_asynchronous(called: Any) -> bool:
    return (
        inspect.iscoroutinefunction(called)
        or inspect.isasyncgenfunction(called)
        or inspect.isgeneratorfunction(called)
    )
