"""Convert the rows that a test passes to a harness for the function and its subtasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, TypeVar

import attrs

from forebay_engine.execution.rows import row_class
from forebay_engine.timers.instants import us_of
from forebay_engine.versions.format.keyed_by import UNKNOWN, KeyColumn, KeyedBy
from forebay_state_api.codecs import ValueCodec
from forebay_state_api.codecs.field_names import as_declared
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.keys import canonical_key, key_group_of, kind_of
from forebay_testing.keyed_row import KeyedRow

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class InputRows:
    """Reads, sorts and routes rows, and extracts keys and event times."""

    uid: str
    max_parallelism: int
    key_of: Callable[[Any], Any]
    key_names: Sequence[str]
    """The names of the key columns; empty if a callable makes the keys."""
    key_alias: Mapping[str, str]
    key_codec: ValueCodec
    event_time_of: Callable[[Any], Any] | None
    order_by: Sequence[str]
    broadcast_order_by: Sequence[str]
    _first: list[Any] = attrs.field(factory=list, init=False)
    """The first key; empty before it."""

    def keyed(self, rows: Iterable[Any], side: int) -> list[KeyedRow]:
        """Return all rows of one input, with their keys, key groups and event times."""
        keyed = []
        for position, row in enumerate(self._named(rows)):
            at_us = self._time_of(row)
            try:
                key = canonical_key(self.key_codec.admit(self.key_of(row)))
                group = key_group_of(key, self.max_parallelism)
                self._check_kind(key)
                keyed.append(KeyedRow(row, key, group, side, at_us))
            except (ValueError, TypeError) as error:
                where = _where(position, side, row)
                raise ConfigurationError(
                    f"operator {self.uid!r}: {error}, in {where}. Filter such rows, or give them "
                    "a key"
                ) from error
        return keyed

    def check_alike(self, key: Any) -> None:
        """Refuse a key of another kind than the keys before it; accept any first key."""
        try:
            self._check(canonical_key(self.key_codec.admit(key)))
        except TypeError as error:
            raise ConfigurationError(f"operator {self.uid!r}: {error}") from error

    def written(self, key: Any) -> None:
        """Check the kind of a key that the test writes to, as `check_alike` does."""
        self.check_alike(key)
        self._check_kind(canonical_key(self.key_codec.admit(key)))

    def keyed_by(self, inputs: int) -> KeyedBy:
        """Return the known key columns of each of ``inputs`` inputs."""
        kinds = [kind for key in self._first for kind in _columns_of(_kind(key))]
        names = self.key_names or [""] * len(kinds)
        columns = [
            KeyColumn(name, kind, self.key_alias.get(name, ""))
            for name, kind in zip(names, kinds or [""] * len(names), strict=True)
        ]
        return KeyedBy([columns] * inputs) if columns else UNKNOWN

    def _check_kind(self, key: Any) -> None:
        self._check(key)
        self._first[:] = self._first or [key]

    def _check(self, key: Any) -> None:
        if any(_kind(first) != _kind(key) for first in self._first):
            raise TypeError(
                f"the keys before it are such as {self._first[0]!r:.100}, and {key!r:.100} is of "
                "another kind: key columns have one type"
            )

    def ordered(self, rows: list[KeyedRow]) -> list[KeyedRow]:
        """Return rows in the order in which their subtasks process them."""
        return self._sorted(rows, self.order_by, lambda one: one.row)

    def broadcast(self, rows: Iterable[Any]) -> list[Any]:
        """Return all rows of a broadcast input, in the order in which subtasks process them."""
        return self._sorted(self._named(rows), self.broadcast_order_by, lambda row: row)

    def _named(self, rows: Iterable[Any]) -> list[Any]:
        if isinstance(rows, (str, Mapping)) or hasattr(rows, "_fields") or rows is None:
            raise ConfigurationError(
                f"operator {self.uid!r}: process takes a list of rows, not {rows!r:.300}"
            )
        try:
            return named_rows(rows)
        except RecursionError:
            raise ConfigurationError(
                f"operator {self.uid!r}: a row is nested too deeply; cast the column to string"
            ) from None

    def _sorted(
        self, given: list[T], columns: Sequence[str], row_of: Callable[[T], Any]
    ) -> list[T]:
        def ranks(one: T) -> list[tuple[int, Any]]:
            row = row_of(one)
            return [_rank(column_of(row, name, "to order by", self.uid)) for name in columns]

        try:
            return sorted(given, key=ranks) if columns else given
        except TypeError as error:
            raise ConfigurationError(
                f"operator {self.uid!r}: rows cannot be ordered by {', '.join(columns)}: {error}"
            ) from error

    def _time_of(self, row: Any) -> int | None:
        """Return the event time in µs; ``None`` for a null."""
        if self.event_time_of is None or (at := self.event_time_of(row)) is None:
            return None
        if not isinstance(at, datetime) or at.tzinfo is None:
            raise ConfigurationError(
                f"operator {self.uid!r}: event times are datetimes with a time zone, and "
                f"{row!r:.300} has {at!r}"
            )
        return us_of(at)


def named_rows(rows: Iterable[Any]) -> list[Any]:
    """Return ``rows`` with dicts converted as in a DataFrame, and with times as Spark has them."""
    rows = list(rows)
    dicts = [row for row in rows if isinstance(row, Mapping)]
    names = tuple(dict.fromkeys(name for row in dicts for name in row))
    make = row_class(names)._make
    return [_in_utc(make(map(row.get, names)) if isinstance(row, Mapping) else row) for row in rows]


def _in_utc(value: Any) -> Any:
    """Return a row, or a part of one, with its instants in UTC, and without types of pandas."""
    if isinstance(value, (datetime, timedelta)):
        return _time(value)
    if type(value) is dict:
        return {_in_utc(key): _in_utc(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)([_in_utc(part) for part in value])
    make: Any = type(value)
    if isinstance(value, tuple) and hasattr(make, "_make"):
        return make._make([_in_utc(part) for part in value])
    if isinstance(value, tuple) and hasattr(make, "asDict"):  # a Row of pyspark
        parts = [_in_utc(part) for part in value]
        return make(*value.__fields__)(*parts) if hasattr(value, "__fields__") else make(*parts)
    return value


def _time(value: Any) -> datetime | timedelta | None:
    if hasattr(value, "to_pydatetime"):  # a Timestamp of pandas, or its NaT
        value = value.to_pydatetime(warn=False) if value == value else None  # noqa: PLR0124
    elif hasattr(value, "to_pytimedelta"):  # a Timedelta of pandas
        value = value.to_pytimedelta()
    return value if getattr(value, "tzinfo", None) is None else _instant(value)


def _instant(value: datetime) -> datetime:
    try:
        return value.astimezone(UTC)
    except OverflowError as error:
        raise ConfigurationError(
            f"a row has a timestamp outside the years 1 to 9999 in UTC, {value}; filter such rows, "
            "or cast the column to string"
        ) from error


def extractor(given: Any, what: str, purpose: str, uid: str) -> Callable[[Any], Any]:
    """Return a function from a row to a column's value, to a tuple of several, or ``given`` itself.

    One name in a list is one column, as for ``keyed``. ``what`` names the argument, and ``purpose``
    the use of the columns, in errors.
    """
    if callable(given):
        return given  # type: ignore[no-any-return]  # as the user wrote it
    names = column_names(given, what, uid)
    if not names:
        raise ConfigurationError(f"operator {uid!r}: {what} needs at least one column")
    if len(names) == 1:
        return lambda row: column_of(row, names[0], purpose, uid)
    return lambda row: tuple(column_of(row, name, purpose, uid) for name in names)


def column_names(given: Any, what: str, uid: str) -> tuple[str, ...]:
    """Return the names of one column or several, each once."""
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise ConfigurationError(
            f"operator {uid!r}: {what} is the name of a column, or a list of names, not {given!r}"
        )
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(
            f"operator {uid!r}: {what} names {', '.join(twice)} twice; name each column once"
        )
    return tuple(names)


def column_of(row: Any, name: str, purpose: str, uid: str) -> Any:
    """Return a column's value in a row."""
    try:
        return getattr(row, name)
    except AttributeError:
        columns = getattr(row, "_fields", None) or getattr(row, "__fields__", None)
        if columns and (declared := as_declared(name, columns)) in columns:
            return row[columns.index(declared)]
        shown = f"the columns are {', '.join(columns)}" if columns else _no_row(row)
        raise ConfigurationError(
            f"operator {uid!r}: there is no column {name!r} {purpose}; {shown}"
        ) from None


def _kind(key: Any) -> Any:
    """Return a value that is the same for all keys that may be equal to each other."""
    return tuple(map(_kind, key)) if isinstance(key, tuple) else kind_of(key)


def _columns_of(key: Any) -> tuple[Any, ...]:
    return key if isinstance(key, tuple) else (key,)


def _rank(value: Any) -> tuple[int, Any]:
    """Return a sort key that puts nulls last and NaN before them, as Spark's workers do.

    Raises `TypeError` for a value of a type by which Spark does not order.
    """
    if value is None:
        return 2, None
    if isinstance(value, (list, tuple, dict, set)):
        raise TypeError(f"a {type(value).__name__} has no order")
    if _is_nan(value):
        return 1, None
    if type(value) is date:
        value = datetime.combine(value, time())
    return 0, value


def _is_nan(value: Any) -> bool:
    return value.is_nan() if isinstance(value, Decimal) else bool(value != value)  # noqa: PLR0124


def _no_row(given: Any) -> str:
    return f"rows are named tuples, Rows or dicts, and one is {given!r:.300}"


def _where(position: int, side: int, row: Any) -> str:
    of = " of the second input" if side else ""
    return f"record {position}{of} of the micro-batch: {row!r:.300}"
