"""``.reduce``: a running reduction of whole rows, given out row by row."""

from __future__ import annotations

from typing import Any

from forebay_state_api.context import RuntimeContext
from forebay_state_api.descriptors import ValueStateDescriptor
from forebay_state_api.functions import KeyedProcessFunction


class RunningReduce(KeyedProcessFunction[Any, Any, Any]):
    """Keeps one row for each key; its state is named ``reduce``."""

    def __init__(self, fn: Any, ddl: str) -> None:
        self._reduce = getattr(fn, "reduce", fn)
        self._ddl = ddl

    def open(self, context: RuntimeContext) -> None:
        self._row = context.get_state(ValueStateDescriptor("reduce", self._ddl))

    def process_element(self, row: Any, ctx: RuntimeContext) -> Any:  # noqa: ARG002 - the contract
        before = self._row.value()
        after = row if before is None else self._reduce(before, row)
        self._row.update(after)
        return [after]
