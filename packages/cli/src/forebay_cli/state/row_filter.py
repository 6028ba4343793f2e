"""``--where`` and ``--columns``: choose rows and columns of an Arrow table of state.

A condition is a comparison of columns with constants, in Python's notation, which Arrow evaluates:
``value > 100 and key != 'test'``, ``value.owner in ('ann', 'bob')``, ``written <
'2026-11-24T08:00'``, ``not (value is None)``. A column whose name has a space is quoted, on the
left of its comparison: ``'total expires' < '2026-11-24'``. Nothing is executed as Python.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from forebay_state_api.codecs.field_names import as_declared
from forebay_state_api.errors import ConfigurationError
from forebay_state_processor.reading.arrow_types import arrow

if TYPE_CHECKING:
    import pyarrow as pa

_EXAMPLE: Final = "such as value > 100 and key != 'test'"


_FOR_SQL: Final = {
    "=": "==",
    "=>": ">=",
    "=<": "<=",
    "<>": "!=",
    "AND": "and",
    "OR": "or",
    "NOT": "not",
    "IS": "is",
    "NULL": "None",
}
"""Words of SQL, in upper case, and Python's."""


def chosen_columns(schema: pa.Schema, names: str | None) -> list[str]:
    """Return the columns that ``names`` lists, separated by commas; all of them for ``None``."""
    if names is None:
        return list(schema.names)
    chosen = [name.strip() for name in names.split(",")]
    _check_known(chosen, schema)
    return chosen


def condition_of(text: str, schema: pa.Schema) -> Any:
    """Return the Arrow expression of a condition; `ConfigurationError` if it is not one."""
    try:
        body = ast.parse(text.strip(), mode="eval").body
        return _Condition(schema).of(body)
    except (RecursionError, MemoryError):  # what the parser raises depends on the depth
        raise ConfigurationError(f"--where {text!r:.100}: it is nested too deeply") from None
    except (SyntaxError, ValueError, TypeError, OverflowError) as error:
        reason = _reason(error)
        raise ConfigurationError(
            f"--where {text!r}: {reason}. Write a comparison, {_EXAMPLE}; columns: "
            f"{', '.join(schema.names)}"
        ) from error


def _reason(error: Exception) -> str:
    """Return why a condition is refused, and Python's word for one of SQL's."""
    if not isinstance(error, SyntaxError):
        return str(error)
    found = re.match(r"\w+|[<>=!]+", (error.text or "")[max((error.offset or 1) - 1, 0) :])
    word = found[0] if found else ""
    python = _FOR_SQL.get(word.upper())
    return error.msg if python is None else f"write `{python}` in place of `{word}`"


def filtered(batch: pa.RecordBatch, condition: Any) -> pa.Table:
    """Return the rows of a batch that meet a condition; all of them for ``None``."""
    pa = arrow()
    table = pa.Table.from_batches([batch])
    if condition is None:
        return table
    try:
        return table.filter(condition)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise ConfigurationError(f"--where cannot be evaluated: {error}") from error


def _check_known(names: Sequence[str], schema: pa.Schema) -> None:
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        raise ConfigurationError(
            f"there is no column {unknown[0]!r}; columns: {', '.join(schema.names)}"
        )


class _NotACondition(ValueError):  # noqa: N818 - what the text is
    """A part of a condition is not one."""


class _Condition:
    """Turns the syntax of a condition into an Arrow expression."""

    def __init__(self, schema: pa.Schema) -> None:
        import pyarrow.compute as pc

        self._schema: Final = schema
        self._pc: Final = pc
        self._of: Final[Mapping[type[ast.AST], Callable[[Any], Any]]] = {
            ast.BoolOp: self._all_or_any,
            ast.UnaryOp: self._negated,
            ast.Compare: self._compared,
            ast.Name: lambda node: self._column(node)[0],
            ast.Attribute: lambda node: self._column(node)[0],
        }

    def of(self, node: ast.AST) -> Any:
        """Return the expression of a condition."""
        if type(node) not in self._of:
            raise _NotACondition(f"{ast.unparse(node)!r} is not a condition")
        return self._of[type(node)](node)

    def _all_or_any(self, node: ast.BoolOp) -> Any:
        parts = [self.of(one) for one in node.values]
        together = parts[0]
        for part in parts[1:]:
            together = together & part if isinstance(node.op, ast.And) else together | part
        return together

    def _negated(self, node: ast.UnaryOp) -> Any:
        if not isinstance(node.op, ast.Not):
            raise _NotACondition(f"{ast.unparse(node)!r} is not a condition")
        return ~self.of(node.operand)

    def _compared(self, node: ast.Compare) -> Any:
        if len(node.ops) != 1:
            raise _NotACondition("compare two things at a time")
        column, kind = self._column(node.left)
        return self._comparison(column, kind, node.ops[0], node.comparators[0])

    def _comparison(self, column: Any, kind: Any, operator: ast.cmpop, other: ast.expr) -> Any:
        if isinstance(operator, ast.In | ast.NotIn):
            values = arrow().array(_constant(other), kind)
            inside = column.isin(values)
            return inside if isinstance(operator, ast.In) else ~inside
        if isinstance(operator, ast.Is | ast.IsNot) or _is_none(other):
            if not _is_none(other):
                raise _NotACondition("only None can follow 'is'")
            null = column.is_null()
            return null if isinstance(operator, ast.Is | ast.Eq) else ~null
        if isinstance(other, ast.Name | ast.Attribute):
            right = self._column(other)[0]
        else:
            right = self._literal(_constant(other), kind)
        compare = _COMPARE[type(operator)]
        return compare(column, right)

    def _literal(self, value: Any, kind: Any) -> Any:
        """Return a constant of the column's type: text for times and dates is ISO 8601."""
        pa = arrow()
        if not isinstance(value, str) or pa.types.is_string(kind):
            return self._pc.scalar(value)
        try:
            if pa.types.is_timestamp(kind):
                return self._pc.scalar(pa.scalar(_instant(value), kind))
            return self._pc.cast(pa.scalar(value), kind)
        except (ValueError, pa.ArrowNotImplementedError) as error:
            raise _NotACondition(f"{value!r} is not a value of type {kind}") from error

    def _column(self, node: ast.expr) -> tuple[Any, Any]:
        """Return a column, or a field of a struct, and its type."""
        path: list[str] = []
        while isinstance(node, ast.Attribute):
            path.insert(0, node.attr)
            node = node.value
        if isinstance(node, ast.Name):
            path.insert(0, node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            path.insert(0, node.value)
        else:
            raise _NotACondition(f"{ast.unparse(node)!r} is not a column")
        path[0] = as_declared(path[0], self._schema.names)
        _check_known(path[:1], self._schema)
        kind = self._schema.field(path[0]).type
        for at, name in enumerate(path[1:], 1):
            known = [one.name for one in kind] if arrow().types.is_struct(kind) else []
            path[at] = as_declared(name, known)
            if path[at] not in known:
                raise _NotACondition(f"{'.'.join(path)} does not exist; {path[0]} is {kind}")
            kind = kind.field(path[at]).type
        return self._pc.field(*path), kind


_COMPARE: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Eq: lambda one, other: one == other,
    ast.NotEq: lambda one, other: one != other,
    ast.Lt: lambda one, other: one < other,
    ast.LtE: lambda one, other: one <= other,
    ast.Gt: lambda one, other: one > other,
    ast.GtE: lambda one, other: one >= other,
}


def _instant(text: str) -> datetime:
    """Return a time; without a zone it is in UTC."""
    at = datetime.fromisoformat(text)
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _constant(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise _NotACondition(f"{ast.unparse(node)!r} is not a constant") from None
