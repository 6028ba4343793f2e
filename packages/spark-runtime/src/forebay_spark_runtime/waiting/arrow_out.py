"""Converts answers to columns, which are appended to the unchanged input columns."""

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
"""Types of answers that are not unpacked if there is one column."""


@attrs.frozen
class FailedRow:
    """The placeholder for the answer of a failed row, whose error goes into a column."""

    type: str
    message: str
    tries: int

    @classmethod
    def of(cls, _row: Any, error: BaseException, tries: int) -> FailedRow:
        """Make the placeholder; this is the function of ``on_error="column"``."""
        return cls(type(error).__name__, encodable(str(error)), tries)


ERROR_TYPE: Final = pa.struct(
    [("type", pa.string()), ("message", pa.string()), ("tries", pa.int32())]
)
ERROR_DDL: Final = "struct<type: string, message: string, tries: int>"


class AnswerWriter:
    """Makes output batches; its `OutputSchemaError` names row, column and function."""

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
        """Prepare the writer.

        :param schema: the ``pa.Schema`` of the answers.
        :param types: the declared types of the answers' columns, for errors.
        :param function: the function's name, for errors.
        :param time_zone: the zone of naive datetimes.
        :param describe: returns the description of a row in errors, from its index.
        :param with_error: whether the output has an error column.
        :param names: the names of the output columns.
        """
        self._writer = RowWriter(schema, function=function, time_zone=time_zone, types=types)
        self._function = function
        self._width = len(schema)
        self._describe = describe
        self._with_error = with_error
        self._names = names

    def batch(self, segment: RowSegment, positions: list[int] | None) -> Any:
        """Return the input rows at ``positions``, in that order, with their answers.

        ``None`` means all rows of the segment. Raises `OutputSchemaError`.
        """
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
            raise self._misfit_error(segment, order, error) from error
        return columns

    def _rows(
        self, segment: RowSegment, order: Sequence[int], answers: list[Any]
    ) -> tuple[list[Any], list[Any] | None, list[int] | None]:
        """Return the rows of the answers' columns, their errors, and positions of their input rows.

        Errors and positions are ``None`` if no row failed and each has exactly one answer.
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
        """Return the rows of one answer with their errors; a failed row has nulls."""
        if isinstance(answer, FailedRow):
            return [((None,) * self._width, attrs.asdict(answer))]
        several = answer if type(answer) is list else [answer]
        if any(one is None for one in several):
            raise OutputSchemaError(
                f"{self._describe(index)}: {self._function} returned None; return an answer, a "
                "list with one answer for each output row ([] for no row), or a tuple with None "
                "in it"
            )
        return [(self._row(one), None) for one in several]

    def _row(self, answer: Any) -> Any:
        if self._width == 1 and not isinstance(answer, tuple | Mapping):
            return (answer,)
        return answer

    def _misfit_error(
        self, segment: RowSegment, order: Sequence[int], error: Exception
    ) -> OutputSchemaError:
        """Return the error with the row that caused it."""
        for position in order:
            answer = segment.answers[position]
            index = segment.first + position
            rows = [row for row, _ in self._expanded(index, answer)]
            try:
                self._writer.batch(rows)
            except OutputSchemaError as found:
                return OutputSchemaError(f"{self._describe(index)}: {found}")
        return OutputSchemaError(f"{reprlib.repr(order)}: {error}")
