"""``.reduce``: a running reduction of whole rows, emitted after each row."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from forebay_engine.execution.record_methods import Adapter, form_of, function_name
from forebay_spark_runtime.arrow.rows_out import RowOrder, RowWriter
from forebay_spark_runtime.arrow.spark_types import arrow_schema
from forebay_state_api.codecs import codec_for
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.aggregation import ReduceFunction
from forebay_state_api.job.context import RuntimeContext
from forebay_state_api.job.descriptors import ValueStateDescriptor
from forebay_state_api.job.functions import KeyedProcessFunction
from forebay_state_api.job.states import ValueState


def running_reduce(fn: Any, schema: Any, uid: str) -> RunningReduce:
    """Return the keyed function of operator ``uid`` that runs ``fn``.

    ``fn`` is a `ReduceFunction` or a callable of two rows, plain or ``async def``. ``schema`` is
    the input's ``StructType``. Raises `ConfigurationError` if ``fn`` is a generator, or if a column
    is of a type that state cannot hold.
    """
    _check_kept(schema, uid)
    reduce = fn.reduce if isinstance(fn, ReduceFunction) else fn
    if _is_generator(reduce) or _is_generator(type(reduce).__call__):
        raise ConfigurationError(
            f"reduce takes a function that returns one row, and {function_name(fn)} is a "
            "generator: return the row instead of yielding it"
        )
    make = RunningReduce if form_of(reduce) == "plain" else AsyncRunningReduce
    return make(fn, reduce, schema)


def _check_kept(schema: Any, uid: str) -> None:
    """Raise `ConfigurationError` for the first column whose values state cannot hold."""
    for kind, what in (
        *((field.dataType, f"column {field.name!r}") for field in schema),
        (schema, "a row"),
    ):
        try:
            codec_for(kind, what=what)
        except ConfigurationError as error:
            raise ConfigurationError(
                f"operator {uid!r}: reduce keeps rows as state, and {what} of type "
                f"{kind.simpleString()} cannot be kept: {error.__cause__}. Leave it out, cast it, "
                "or use process"
            ) from error


def _is_generator(called: Any) -> bool:
    return inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called)


class RunningReduce(Adapter, KeyedProcessFunction[Any, Any, Any]):
    """Keeps one row for each key; its state is named ``reduce``.

    The function gets two input rows. It returns a row in any form that an output row can have.
    """

    method = "reduce"

    def __init__(self, fn: Any, reduce: Callable[[Any, Any], Any], schema: Any) -> None:
        self.wrapped = fn
        self._reduce = reduce
        self._schema = schema
        self._order = RowOrder(schema.names, function_name(fn))

    def open(self, context: RuntimeContext) -> None:
        self._row: ValueState[Any] = context.get_state(ValueStateDescriptor("reduce", self._schema))

    def process_element(self, row: Any, ctx: RuntimeContext) -> Any:  # noqa: ARG002 - the contract
        before = self._row.value()
        if before is None:
            after = tuple(row)
        else:
            after = self._order.as_tuple(self._reduce(type(row)._make(before), row))
        self._keep(after)
        return [after]

    def _keep(self, after: tuple[Any, ...]) -> None:
        try:
            self._row.update(after)
        except Exception:
            # If a column does not fit, this raises an error that names it.
            self._writer().batch([after])
            raise

    def _writer(self) -> RowWriter:
        schema, function = arrow_schema(self._schema), function_name(self.wrapped)
        types = [field.dataType.simpleString() for field in self._schema]
        return RowWriter(schema, function=function, time_zone="UTC", types=types)


class AsyncRunningReduce(RunningReduce):
    """`RunningReduce` for an ``async def`` function."""

    async def process_element(self, row: Any, ctx: RuntimeContext) -> Any:  # noqa: ARG002 - the contract
        before = await self._row.async_value()
        if before is None:
            after = tuple(row)
        else:
            after = self._order.as_tuple(await self._reduce(type(row)._make(before), row))
        self._keep(after)
        return [after]
