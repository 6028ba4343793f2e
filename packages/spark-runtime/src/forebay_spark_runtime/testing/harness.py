"""`FunctionHarness` where Spark is installed: emitted rows have the types of Spark's columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle

from forebay_spark_runtime.testing.output_rows import OutputRows
from forebay_state_api import testing
from forebay_state_api.engine.pickling import pickled_function


class FunctionHarness(testing.FunctionHarness):
    """The harness of ``forebay_state_api.testing``, with a ``schema`` as in ``process``.

    It copies functions in the way in which Spark's workers get them.
    """

    def _pickle(self, fn: Any) -> bytes:
        return pickled_function(fn, self._uid, cloudpickle.dumps)

    def _schema_check(self, schema: Any) -> Callable[[list[Any]], list[Any]]:
        self._output = OutputRows(
            schema,
            function=self._function_name,
            uid=self._uid,
            error_column=None if self._error_limit is None else self._error_column,
        )
        return self._output.checked

    def _fits(self, rows: list[Any], start: int) -> None:
        if self._schema is not None:
            self._output.check(rows, start)
        super()._fits(rows, start)
