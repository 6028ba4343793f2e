"""Shapes of scalars, of ``None``, and of ``T | None``."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any, Final
from uuid import UUID

from forebay_state_api.codecs.describe import describe_type
from forebay_state_api.codecs.numpy_scalars import without_numpy
from forebay_state_api.codecs.plain import ByteLayout
from forebay_state_api.codecs.type_shapes import (
    Code,
    Description,
    Function,
    MisfitError,
    TypeShape,
    a_class,
)

_NAN: Final = float("nan")
_DECIMAL_NAN: Final = Decimal("NaN")
_EXACT: Final = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)


def float_address(value: float) -> float:
    """Return the canonical one of equal floats; all NaNs count as equal."""
    return value + 0.0 if value == value else _NAN  # noqa: PLR0124 - false for NaN only


def decimal_address(value: Decimal) -> Decimal:
    """Return the canonical one of equal Decimals; all NaNs count as equal."""
    if value.is_nan():
        return _DECIMAL_NAN
    return value.normalize(_EXACT) if value else Decimal(0)


def datetime_address(value: datetime) -> datetime:
    """Return the datetime in UTC, or without fold if it has no zone: equal iff ``value`` is."""
    return value.replace(fold=0) if value.tzinfo is None else value.astimezone(UTC)


def time_address(value: time) -> time:
    """Return the time without fold. Raises `TypeError` for a time with a zone."""
    if value.tzinfo is not None:
        raise TypeError(f"a time with a zone cannot be a key: {value!r}")
    return value.replace(fold=0)


ADDRESSES: Final[dict[type, Callable[[Any], Any]]] = {
    float: float_address,
    Decimal: decimal_address,
    datetime: datetime_address,
    time: time_address,
}
"""Scalar classes in which equal values may have different encodings."""

SCALAR_NAMES: Final[dict[type, str]] = {
    type(None): "none",
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    bytes: "bytes",
    date: "date",
    datetime: "datetime",
    time: "time",
    timedelta: "timedelta",
    Decimal: "decimal",
    UUID: "uuid",
}
"""Scalar class → the ``type`` of its description."""


class ScalarShape(TypeShape):
    """A scalar of exactly one class; subclasses are refused, since they would lose their class."""

    def __init__(self, cls: type) -> None:
        """Describe ``cls``, one of `plain.SCALARS`."""
        self.description = {"type": SCALAR_NAMES[cls]}
        self.exact = frozenset({cls})
        self.address = ADDRESSES.get(cls)

    def convert(self, value: Any) -> Any:
        """Return ``value``, as a Python value if it is a NumPy scalar."""
        value = without_numpy(value)
        if type(value) not in self.exact:
            raise MisfitError("", f"{a_class(value)}, not {describe_type(self.description)}")
        return value

    def reader(self, stored: Description) -> Function | None:
        """Accept the same type only."""
        self.check_type(stored)
        return None


class FloatShape(ScalarShape):
    """A float; ints are converted, both on writing and when stored data are ints."""

    def __init__(self) -> None:
        """Describe float."""
        super().__init__(float)

    def convert(self, value: Any) -> Any:
        """Return ``value`` as a float."""
        value = without_numpy(value)
        if type(value) is not int:
            return super().convert(value)
        try:
            return float(value)
        except OverflowError:
            raise MisfitError("", "an int too large for a float") from None

    def reader(self, stored: Description) -> Function | None:
        """Accept float and int."""
        return float if stored["type"] == "int" else super().reader(stored)


class DatetimeShape(ScalarShape):
    """A datetime; an instant is kept in UTC, where arithmetic is arithmetic of instants."""

    def __init__(self) -> None:
        """Describe datetime."""
        super().__init__(datetime)
        self.exact = frozenset()

    def test(self, subject: str, code: Code) -> str:
        """Pass datetimes in UTC and datetimes without a zone."""
        zones = code.bind((None, UTC))
        return f"(type({subject}) is {code.bind(datetime)} and {subject}.tzinfo in {zones})"

    def convert(self, value: Any) -> Any:
        """Return ``value``, in UTC if it has a zone."""
        if type(value) is not datetime:
            raise MisfitError("", f"{a_class(value)}, not {describe_type(self.description)}")
        return in_utc(value)


def in_utc(value: datetime) -> datetime:
    """Return the same instant in UTC; a datetime without a zone as is. Raises `MisfitError`."""
    if value.tzinfo is None or value.tzinfo is UTC:
        return value
    if value.utcoffset() is None:
        raise MisfitError("", f"a datetime in a zone without an offset, {value.tzinfo!r}")
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise MisfitError("", "an instant outside the years 1 to 9999 in UTC") from None


def scalar_shape(cls: type) -> ScalarShape:
    """Return the shape of one of `plain.SCALARS`."""
    made: ScalarShape = _OF_THEIR_OWN[cls]() if cls in _OF_THEIR_OWN else ScalarShape(cls)
    return made


_OF_THEIR_OWN: Final[dict[type, Callable[[], ScalarShape]]] = {
    float: FloatShape,
    datetime: DatetimeShape,
}


class OptionalShape(TypeShape):
    """``T | None``."""

    def __init__(self, of: TypeShape) -> None:
        """Allow ``None`` in addition to the values of ``of``."""
        self.description = {"type": "optional", "of": of.description}
        self._of = of
        self.classes = of.classes
        self.exact = of.exact | {type(None)} if of.exact else frozenset()
        self.copy = _unless_none(of.copy)
        self.to_plain = _unless_none(of.to_plain)
        self.address = _unless_none(of.address)
        self.original = _unless_none(of.original)

    @property
    def declaration(self) -> dict[str, Any]:
        """The description, with the declaration of ``T``."""
        return {**self.description, "of": self._of.declaration}

    def test(self, subject: str, code: Code) -> str:
        """Pass ``None``."""
        if self.exact:
            return super().test(subject, code)
        return f"({subject} is None or {self._of.test(subject, code)})"

    def convert(self, value: Any) -> Any:
        """Return ``None`` for ``None``."""
        return None if value is None else self._of.convert(value)

    def reader(self, stored: Description) -> Function | None:
        """Accept ``S``, ``S | None`` and ``None`` where ``T`` accepts ``S``."""
        if stored["type"] == "none":
            return None
        inner = stored["of"] if stored["type"] == "optional" else stored
        return _unless_none(self._of.reader(inner))

    def layout_of(self, stored: Description) -> ByteLayout:
        """Return the layout of ``T`` where ``T`` itself was stored."""
        nested = stored["type"] in ("none", "optional")
        return self.layout if nested else self._of.layout_of(stored)


def _unless_none(function: Function | None) -> Function | None:
    if function is None:
        return None
    return lambda value: None if value is None else function(value)
