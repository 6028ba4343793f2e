"""Descriptors of one name: what was made twice agrees, and what can be told apart does not."""

from __future__ import annotations

import functools
import operator
import threading
from datetime import timedelta
from typing import Optional

import attrs
import pytest

from forebay_state_api import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReduceFunction,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api._agreement import disagreement, same
from forebay_state_api.codecs import Codec


def add(first, second):
    return first + second


class Scaled(ReduceFunction):
    def __init__(self, by):
        self.by = by

    def reduce(self, first, second):
        return first + second * self.by


class Slotted:
    __slots__ = ("by",)

    def __init__(self, by):
        self.by = by

    def __call__(self, first, second):
        return first + second * self.by


class Locked(Scaled):
    def __init__(self, by):
        super().__init__(by)
        self.lock = threading.Lock()


class Unpicklable(Scaled):
    def __getstate__(self):
        raise TypeError("no")


class Stubborn:
    """Nothing can be said about two of them."""

    def __eq__(self, other):
        raise RuntimeError("no")

    __hash__ = None


@attrs.define
class Composed:
    fn: object

    def __call__(self, first, second):
        return self.fn(first, second)


class Text(Codec):
    id = "text"
    version = 1

    def __init__(self, encoding):
        self.encoding = encoding

    def encode(self, value):
        return value.encode(self.encoding)

    def decode(self, data):
        return data.decode(self.encoding)

    def describe(self):
        return "text"

    def compatible_with(self, stored_description):
        return True


def captured(by):
    return lambda first, second: first + second * by


def defaulted(by):
    return lambda first, second, by=by: first + second * by


def keyword(by):
    return lambda first, second, *, by=by: first + second * by


def recursive(by):
    def reduce(first, second):
        return reduce(first, 0) if second else first * by

    return reduce


def unassigned(by):
    def reduce(first, second):
        return later * by

    if by is None:
        later = 1
    return reduce


MAKERS = [
    captured,
    defaulted,
    keyword,
    recursive,
    Scaled,
    Slotted,
    Locked,
    lambda by: functools.partial(add, by),
    lambda by: functools.partial(captured(by), second=by),
    lambda by: captured([captured({"by": by})]),
    lambda by: Scaled(by).reduce,
    lambda by: Composed(captured(by)),
    lambda by: ("a", by).count,
]


@pytest.mark.parametrize("make", MAKERS)
def test_functions_that_were_made_twice_are_the_same(make):
    assert same(make(1), make(1))


@pytest.mark.parametrize("make", MAKERS)
def test_functions_that_differ_in_what_they_hold_are_told_apart(make):
    assert not same(make(1), make(2))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (max, min),
        (add, captured(1)),
        (functools.partial(max), functools.partial(min)),
        (functools.partial(max), max),
        (Scaled, Locked),
        (captured(threading), captured(functools)),
        ([1], [1, 1]),
        ({"a": 1}, {"b": 1}),
    ],
)
def test_other_functions_are_told_apart(one, other):
    assert not same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (captured(Stubborn()), captured(Stubborn())),
        (Unpicklable(1), Unpicklable(2)),
        (unassigned(0), unassigned(0)),
        (threading.Lock(), threading.Lock()),
        (operator.itemgetter(0), operator.itemgetter(1)),
    ],
)
def test_what_nothing_tells_apart_counts_as_the_same(one, other):
    assert one is not other
    assert same(one, other)


def test_a_comparison_of_what_holds_itself_ends():
    one, other = [1], [1]
    one.append(one)
    other.append(other)
    assert same(one, other)


@pytest.mark.parametrize("make", [m for m in MAKERS if m is not Locked])
def test_what_was_pickled_is_the_same(make):
    cloudpickle = pytest.importorskip("pyspark.cloudpickle")
    assert same(make(1), cloudpickle.loads(cloudpickle.dumps(make(1))))


PLACE = f"captured.<locals>.<lambda> of {__file__}:{captured(1).__code__.co_firstlineno}"
DAY, HOUR = (StateTtlConfig(timedelta(hours=hours)) for hours in (24, 1))


@pytest.mark.parametrize(
    ("known", "other", "told"),
    [
        (ValueStateDescriptor("s", int), ListStateDescriptor("s", int), "kind (value and list)"),
        (
            ValueStateDescriptor("s", int, default=0),
            ValueStateDescriptor("s", int, default=False),
            "default (0 and False)",
        ),
        (
            ValueStateDescriptor("s", int, default=1),
            ValueStateDescriptor("s", list[int]),
            "type (int and list[int]) and default (1 and None)",
        ),
        (
            ListStateDescriptor("s", "int"),
            ListStateDescriptor("s", "long"),
            "type ('int' and 'long')",
        ),
        (
            ValueStateDescriptor("s", Text("ascii")),
            ValueStateDescriptor("s", Text("utf-8")),
            "type (twice a Text, with other fields, defaults or captured values)",
        ),
        (
            ReducingStateDescriptor("s", functools.partial(max), int),
            ReducingStateDescriptor("s", functools.partial(min), int),
            f"reduce_function ({functools.partial(max)!r} and {functools.partial(min)!r})",
        ),
        (
            ReducingStateDescriptor("s", Scaled(1), int),
            ReducingStateDescriptor("s", Scaled(2), int),
            "reduce_function (twice a Scaled, with other fields, defaults or captured values)",
        ),
        (
            ReducingStateDescriptor("s", captured(1), int),
            ReducingStateDescriptor("s", captured(2), int),
            f"reduce_function (twice {PLACE}, with other fields, defaults or captured values)",
        ),
    ],
)
def test_the_message_says_in_what_they_differ(known, other, told):
    assert disagreement(known, other) == told


def test_the_times_to_live_are_shown():
    known, other = (ListStateDescriptor("s", int, ttl=ttl) for ttl in (DAY, HOUR))
    assert "ttl (StateTtlConfig(ttl=datetime.timedelta(days=1)" in disagreement(known, other)


@pytest.mark.parametrize(
    "made",
    [
        lambda: ValueStateDescriptor("s", Text("ascii"), default="x"),
        lambda: ValueStateDescriptor("s", float, default=float("nan")),
        lambda: ListStateDescriptor("s", list[int], ttl=StateTtlConfig(timedelta(hours=1))),
        lambda: MapStateDescriptor("s", str, int | None),
        lambda: ReducingStateDescriptor("s", captured(1), int),
        lambda: ReducingStateDescriptor("s", Scaled(1), int),
    ],
)
def test_what_is_declared_twice_agrees(made):
    assert disagreement(made(), made()) is None


def test_a_type_may_be_written_in_two_ways():
    known, other = ValueStateDescriptor("s", Optional[int]), ValueStateDescriptor("s", int | None)  # noqa: UP045 - it is what is tested
    assert disagreement(known, other) is None


def test_what_is_equal_agrees_whatever_its_order():
    orders = [{"a": 1, "b": 2}, {"b": 2, "a": 1}]
    known, other = (ValueStateDescriptor("s", default=order) for order in orders)
    assert disagreement(known, other) is None
