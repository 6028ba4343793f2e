"""From answers to the columns that are appended to the input's, untouched ones."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs
import pyarrow as pa

from forebay_spark_runtime.arrow.rows_out import RowWriter
from forebay_spark_runtime.waiting.answer_window import RowSegment
from forebay_state_api.errors import OutputSchemaError
from forebay_state_api.user_frames import encodable

_BARE: Final = frozenset({str, int, float, bool, bytes})
"""Types of answers that need no look where there is one column."""


@attrs.frozen
class FailedRow:
    """In place of the answer of a row whose error goes into a column."""

    type: str
    message: str
    tries: int

    @classmethod
    def of(cls, _row: Any, error: BaseException, tries: int) -> FailedRow:
        """What ``on_error="column"`` makes of a failed row."""
        return cls(type(error).__name__, encodable(str(error)), tries)


ERROR_TYPE: Final = pa.struct(
    [("type", pa.string()), ("message", pa.string()), ("tries", pa.int32())]
)
ERROR_DDL: Final = "struct<type: string, message: string, tries: int>"


class AnswerWriter:
    """Makes output batches; `OutputSchemaError` names row, column and function."""

    def __init__(
        self,
        schema: Any,
        *,
        types: list[str],
        function: str,
        time_zone: str,
        describe: Callable[[int], str],
        with_error: bool,
        names: list[str],
    ) -> None:
        """``schema`` is the ``pa.Schema`` of the answers; ``names`` are the output's columns."""
        self._writer = RowWriter(schema, function=function, time_zone=time_zone, types=types)
        self._function = function
        self._width = len(schema)
        self._describe = describe
        self._with_error = with_error
        self._names = names

    def batch(self, segment: RowSegment, positions: list[int] | None) -> Any:
        """The input's rows at ``positions``, in that order, with their answers."""
        answers = segment.answers
        order: Sequence[int] = range(len(answers)) if positions is None else positions
        if positions is not None:
            answers = [answers[position] for position in positions]
        rows, errors, taken = self._rows(segment, order, answers)
        data = segment.data
        if taken is None and positions is not None:
            taken = positions
        if taken is not None:
            data = data.take(pa.array(taken, pa.int32()))
        columns = [*data.columns, *self._columns(segment, order, rows)]
        if self._with_error:
            columns.append(pa.array(errors or [None] * len(rows), ERROR_TYPE))
        return pa.RecordBatch.from_arrays(columns, names=self._names)

    def _columns(self, segment: RowSegment, order: Sequence[int], rows: list[Any]) -> list[Any]:
        try:
            columns: list[Any] = self._writer.batch(rows).columns
        except OutputSchemaError as error:
            raise self._misfit(segment, order, error) from error
        return columns

    def _rows(
        self, segment: RowSegment, order: Sequence[int], answers: list[Any]
    ) -> tuple[list[Any], list[Any] | None, list[int] | None]:
        """Rows of the answers' columns, their errors, and the input's rows they belong to.

        Errors and positions are ``None`` where no row failed and each has one answer.
        """
        kinds = set(map(type, answers))
        if self._width == 1 and kinds <= _BARE:
            return [(answer,) for answer in answers], None, None
        if not kinds & {list, FailedRow, type(None)}:
            return [self._row(answer) for answer in answers], None, None
        rows: list[Any] = []
        errors: list[Any] = []
        taken: list[int] = []
        for position, answer in zip(order, answers, strict=True):
            for row, error in self._expanded(segment.first + position, answer):
                rows.append(row)
                errors.append(error)
                taken.append(position)
        as_they_are = taken == list(range(len(segment.rows)))
        return rows, errors, None if as_they_are else taken

    def _expanded(self, index: int, answer: Any) -> list[tuple[Any, Any]]:
        """One answer as rows: none, one or many; a failed row as nulls with its error."""
        if isinstance(answer, FailedRow):
            return [((None,) * self._width, attrs.asdict(answer))]
        several = answer if type(answer) is list else [answer]
        if any(one is None for one in several):
            raise OutputSchemaError(
                f"{self._describe(index)}: {self._function} returned None; return an answer, a "
                "list of as many as there are to be rows ([] for none), or a tuple with None in it"
            )
        return [(self._row(one), None) for one in several]

    def _row(self, answer: Any) -> Any:
        if self._width == 1 and not isinstance(answer, tuple | Mapping):
            return (answer,)
        return answer

    def _misfit(
        self, segment: RowSegment, order: Sequence[int], error: Exception
    ) -> OutputSchemaError:
        """The same error with the row in it."""
        for position in order:
            answer = segment.answers[position]
            index = segment.first + position
            rows = [row for row, _ in self._expanded(index, answer)]
            try:
                self._writer.batch(rows)
            except OutputSchemaError as found:
                return OutputSchemaError(f"{self._describe(index)}: {found}")
        return OutputSchemaError(f"{reprlib.repr(order)}: {error}")
