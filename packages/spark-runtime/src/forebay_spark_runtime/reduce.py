"""``.reduce``: a running reduction of whole rows, given out row by row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from forebay_spark_runtime.rows_out import RowOrder
from forebay_state_api._engine.engine import function_name
from forebay_state_api.context import RuntimeContext
from forebay_state_api.descriptors import ValueStateDescriptor
from forebay_state_api.functions import Function, KeyedProcessFunction
from forebay_state_api.states import ValueState


class RunningReduce(KeyedProcessFunction[Any, Any, Any]):
    """Keeps one row for each key; its state is named ``reduce``.

    The function gets rows of the input and may give back whatever can go out as one.
    """

    def __init__(self, fn: Any, schema: Any) -> None:
        """``schema`` is the input's ``StructType``; ``fn`` a `ReduceFunction` or a callable."""
        self._fn = fn
        self._schema = schema
        self._reduce: Callable[[Any, Any], Any] = getattr(fn, "reduce", fn)
        self._order = RowOrder(schema.names, function_name(fn))

    def open(self, context: RuntimeContext) -> None:
        self._row: ValueState[Any] = context.get_state(ValueStateDescriptor("reduce", self._schema))
        if isinstance(self._fn, Function):
            self._fn.open(context)

    def process_element(self, row: Any, ctx: RuntimeContext) -> Any:  # noqa: ARG002 - the contract
        before = self._row.value()
        if before is None:
            after = tuple(row)
        else:
            after = self._order.as_tuple(self._reduce(type(row)._make(before), row))
        self._row.update(after)
        return [after]

    def close(self) -> None:
        if isinstance(self._fn, Function):
            self._fn.close()
