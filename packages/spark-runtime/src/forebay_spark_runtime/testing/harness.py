"""`FunctionHarness` where Spark is installed: emitted rows have the types of Spark's columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

from pyspark import cloudpickle

import forebay_testing as testing
from forebay_engine.columns.outputs import Output
from forebay_engine.execution.pickling import pickled_function
from forebay_spark_runtime.event_time.marks import check_column
from forebay_spark_runtime.keyed_operator.with_state import MapWithState
from forebay_spark_runtime.testing.output_rows import OutputRows
from forebay_state_api.job.ttl import StateTtlConfig


class FunctionHarness(testing.FunctionHarness):
    """The harness of ``forebay_testing``, with a ``schema`` as in ``process``.

    It copies functions in the way in which Spark's workers get them.
    """

    @classmethod
    def map_with_state(
        cls,
        fn: Callable[[Any, Any], tuple[Any, Any]],
        key_by: str | Sequence[str] | Callable[[Any], Any],
        *,
        state_type: Any = None,
        ttl: StateTtlConfig | None = None,
        switch_ttl: bool = False,
        **more: Any,
    ) -> Self:
        """Return the harness of ``keyed(...).map_with_state``.

        :param fn: a plain callable ``fn(row, value)`` → ``(row, value)``.
        :param key_by: as for a function.
        :param state_type: the type of the value; default: values of the plain kinds.
        :param ttl: the time to live of the value; default: none.
        :param switch_ttl: as in descriptors.
        :param more: the other arguments of a harness.

        The value is the state ``ValueStateDescriptor("value", state_type, ttl=ttl)``.
        """
        function = MapWithState(
            fn, many=False, state_type=state_type, ttl=ttl, switch_ttl=switch_ttl
        )
        return cls(function, key_by, **more)

    @classmethod
    def flat_map_with_state(
        cls,
        fn: Callable[[Any, Any], tuple[Any, Any]],
        key_by: str | Sequence[str] | Callable[[Any], Any],
        *,
        state_type: Any = None,
        ttl: StateTtlConfig | None = None,
        switch_ttl: bool = False,
        **more: Any,
    ) -> Self:
        """Return the harness of ``keyed(...).flat_map_with_state``.

        :param fn: a plain callable ``fn(row, value)`` → ``(rows, value)``.

        The other parameters are as for `map_with_state`.
        """
        function = MapWithState(
            fn, many=True, state_type=state_type, ttl=ttl, switch_ttl=switch_ttl
        )
        return cls(function, key_by, **more)

    def _pickle(self, fn: Any) -> bytes:
        return pickled_function(fn, self._uid, cloudpickle.dumps)

    def _schema_check(self, schema: Any) -> Callable[[list[Any]], list[Any]]:
        self._output = OutputRows(
            schema,
            function=self._function_name,
            uid=self._uid,
            error_column=None if self._error_limit is None else self._error_column,
            late=self._late,
        )
        if self.emits_event_time is not None:
            check_column(self._output.declared, self.emits_event_time, self._uid)
        return self._output.checked

    def _batch_output(self) -> Output:
        return super()._batch_output() if self._schema is None else self._output.of_columns()

    def _admit(self, row: Any) -> None:
        if self._schema is not None:
            self._output.check([row])
        super()._admit(row)
