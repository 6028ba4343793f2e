"""Tests of values, compiled for a schema, that pass only values which a column accepts.

Each test is text, because it runs for every row: a call per value would cost more than the rest.
Only numbers and names that are made here are put into it. ``None`` is no value here: callers allow
it where it is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import count
from typing import Any, Final, TypeAlias

import pyarrow as pa

CLASSES: Final[dict[str, type]] = {
    one.__name__: one
    for one in (bool, bytes, date, datetime, Decimal, dict, float, int, list, str, timedelta, tuple)
}
"""The classes that tests name."""

TRUE: Final = "True"

_DAYS: Final = (1 << 63) // 86_400_000_000
"""The days that fit into an interval of 64 bits of µs."""

Test: TypeAlias = "tuple[type, str]"
"""The class of the usual values, and what else they must pass."""

_MakeTest: TypeAlias = Callable[[Any, str, Iterator[int]], Test]
"""Makes the test of a value of an Arrow type; the names number variables."""


def value_test(kind: Any, value: str, names: Iterator[int] | None = None) -> Test:
    """Return the test of ``value``, an expression, for columns of an Arrow type.

    ``names`` numbers the variables of tests within tests. A type that is not known here has
    ``NoneType`` for its class, so that no value passes.
    """
    names = names or count()
    found = (make(kind, value, names) for is_such, make in _TESTS if is_such(kind))
    return next(found, (type(None), TRUE))


def or_null(kind: Any, value: str, names: Iterator[int] | None = None, *, null: bool = True) -> str:
    """Return the complete test of ``value``: its class and other conditions, or ``None``."""
    cls, test = value_test(kind, value, names)
    tests = [f"{value} is None"] if null else []
    if cls is not type(None):
        tests.append(f"{value}.__class__ is {cls.__name__} and ({test})")
    if pa.types.is_float64(kind):  # a whole number that a double has is as good
        tests.append(f"{value}.__class__ is int and {value}.bit_length() <= 53")
    return f"({' or '.join(tests) or False})"


def usual_tests(columns: Sequence[tuple[Any, str]]) -> list[str]:
    """Return tests that usual values pass together, for pairs of an Arrow type and an expression.

    They take less time than a test for each: classes come first, and whole numbers of a width share
    a test, which is quick if none is negative. No value of a type that is not known here passes.
    """
    tests = [(kind, value, *value_test(kind, value)) for kind, value in columns]
    classes = [
        "False" if cls is type(None) else f"{value}.__class__ is {cls.__name__}"
        for _, value, cls, _ in tests
    ]
    numbers: dict[int, list[tuple[str, str]]] = {}
    others = []
    for kind, value, _, test in tests:
        if pa.types.is_signed_integer(kind):
            numbers.setdefault(kind.bit_width, []).append((value, test))
        elif test != TRUE:
            others.append(f"({test})")
    return [*classes, *(_together(width, those) for width, those in numbers.items()), *others]


def _together(width: int, numbers: Sequence[tuple[str, str]]) -> str:
    """Return a test of whole numbers of a width, for pairs of an expression and its own test."""
    joined = " | ".join(value for value, _ in numbers)
    return f"(not ({joined}) >> {width - 1} or {' and '.join(test for _, test in numbers)})"


def _of(cls: type, test: str = TRUE) -> _MakeTest:
    return lambda _kind, value, _names: (cls, test.format(value))


def _number(kind: Any, value: str, _: Iterator[int]) -> Test:
    """Test whole numbers; true for all that fit but the least, in the same time for each."""
    return int, f"{value}.bit_length() < {kind.bit_width}"


def _time(kind: Any, value: str, _: Iterator[int]) -> Test:
    """Test times: these fit in every time zone."""
    test = f"2 <= {value}.year < 9_999"
    return datetime, test if kind.tz else f"{test} and {value}.tzinfo is None"


def _decimal(kind: Any, value: str, _: Iterator[int]) -> Test:
    return Decimal, (
        f"{value}.is_finite() and {value}.adjusted() < {kind.precision - kind.scale} "
        f"and {value}.as_tuple().exponent >= {-kind.scale}"
    )


def _list(kind: Any, value: str, names: Iterator[int]) -> Test:
    part = f"part{next(names)}"
    test = or_null(kind.value_type, part, names, null=kind.value_field.nullable)
    return list, f"all({test} for {part} in {value})"


def _map(kind: Any, value: str, names: Iterator[int]) -> Test:
    key, item = f"key{next(names)}", f"item{next(names)}"
    keys = or_null(kind.key_type, key, names, null=False)
    items = or_null(kind.item_type, item, names, null=kind.item_field.nullable)
    return dict, f"all({keys} and {items} for {key}, {item} in {value}.items())"


def _struct(kind: Any, value: str, names: Iterator[int]) -> Test:
    fields = [kind.field(position) for position in range(kind.num_fields)]
    tests = [
        or_null(field.type, f"{value}[{position}]", names, null=field.nullable)
        for position, field in enumerate(fields)
    ]
    return tuple, " and ".join([f"len({value}) == {len(fields)}", *tests])


_TESTS: Final[tuple[tuple[Callable[[Any], bool], _MakeTest], ...]] = (
    (pa.types.is_string, _of(str)),
    (pa.types.is_large_string, _of(str)),
    (pa.types.is_boolean, _of(bool)),
    (pa.types.is_float64, _of(float)),
    (pa.types.is_float32, _of(float, "-3.4e38 < {0} < 3.4e38 or {0} != {0}")),
    (pa.types.is_binary, _of(bytes)),
    (pa.types.is_large_binary, _of(bytes)),
    (pa.types.is_date, _of(date)),
    (pa.types.is_duration, _of(timedelta, f"-{_DAYS} < {{0}}.days < {_DAYS}")),
    (pa.types.is_signed_integer, _number),
    (pa.types.is_timestamp, _time),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_list, _list),
    (pa.types.is_large_list, _list),
    (pa.types.is_map, _map),
    (pa.types.is_struct, _struct),
)
