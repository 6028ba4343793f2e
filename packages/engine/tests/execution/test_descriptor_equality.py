"""Descriptors of one name: equal definitions agree, and different ones do not."""

from __future__ import annotations

import functools
import pickle
from datetime import timedelta
from typing import Optional

import pytest

from forebay_engine.execution.descriptor_equality import disagreement
from forebay_state_api import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReduceFunction,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.codecs import Codec
from forebay_state_api.errors import ConfigurationError


class Scaled(ReduceFunction):
    def __init__(self, by):
        self.by = by

    def reduce(self, first, second):
        return first + second * self.by


class Doubled(Scaled):
    pass


class Text(Codec):
    id = "text"
    version = 1

    def encode(self, value):
        return value.encode()

    def decode(self, data):
        return data.decode()

    def describe(self):
        return "text"

    def compatible_with(self, stored_description):
        return True


class Words(Text):
    pass


def captured(by):
    return lambda first, second: first + second * by


def added(first, second):
    return first + second


def reducing(function):
    return ReducingStateDescriptor("s", function, int)


def value(default):
    return ValueStateDescriptor("s", default=default)


MAKERS = [
    lambda: ValueStateDescriptor("s", Text(), default="x"),
    lambda: value(float("nan")),
    lambda: value({"a": [1]}),
    lambda: ListStateDescriptor("s", list[int], ttl=StateTtlConfig(timedelta(hours=1))),
    lambda: MapStateDescriptor("s", str, int | None),
    lambda: reducing(captured(1)),
    lambda: reducing(Scaled(1)),
    lambda: reducing(Scaled(1).reduce),
    lambda: reducing(functools.partial(added, second=1)),
    lambda: reducing(max),
]


@pytest.mark.parametrize("made", MAKERS)
def test_what_is_declared_twice_agrees(made):
    assert disagreement(made(), made()) is None


@pytest.mark.parametrize("function", [added, Scaled(1), max])
def test_what_was_pickled_agrees(function):
    assert disagreement(reducing(function), pickle.loads(pickle.dumps(reducing(function)))) is None


def test_what_functions_hold_is_not_compared():
    assert disagreement(reducing(captured(1)), reducing(captured(2))) is None
    assert disagreement(reducing(Scaled(1)), reducing(Scaled(2))) is None


def test_a_type_may_be_written_in_two_ways():
    known, other = ValueStateDescriptor("s", Optional[int]), ValueStateDescriptor("s", int | None)  # noqa: UP045 - it is what is tested
    assert disagreement(known, other) is None


class Counted(ValueStateDescriptor):
    """Declares more than its base."""

    def aspects(self):
        return super().aspects() | {"limit": 3}


def test_a_subclass_that_declares_more_disagrees_with_its_base():
    known, other = Counted("s", int), ValueStateDescriptor("s", int)
    assert disagreement(known, other) == "limit (3 and None)"
    assert disagreement(other, known) == "limit (None and 3)"
    assert disagreement(known, Counted("s", int)) is None


PLACES = [
    f"{function.__qualname__} of {__file__}:{function.__code__.co_firstlineno}"
    for function in (captured(1), added)
]
DAY, HOUR = (StateTtlConfig(timedelta(hours=hours)) for hours in (24, 1))


@pytest.mark.parametrize(
    ("known", "other", "told"),
    [
        (ValueStateDescriptor("s", int), ListStateDescriptor("s", int), "kind (value and list)"),
        (value(0), value(False), "default (0 and False)"),
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
            MapStateDescriptor("s", int, str),
            MapStateDescriptor("s", str, str),
            "key type (int and str)",
        ),
        (
            ListStateDescriptor("s", int, ttl=DAY),
            ListStateDescriptor("s", int, ttl=HOUR),
            f"ttl ({DAY!r} and {HOUR!r})",
        ),
        (
            ValueStateDescriptor("s", Text()),
            ValueStateDescriptor("s", Words()),
            "type (a Text and a Words)",
        ),
        (reducing(max), reducing(min), f"reduce_function ({max!r} and {min!r})"),
        (reducing(Scaled(1)), reducing(Doubled(1)), "reduce_function (a Scaled and a Doubled)"),
        (reducing(captured(1)), reducing(added), f"reduce_function ({' and '.join(PLACES)})"),
    ],
    ids=["kind", "default", "two", "type", "key_type", "ttl", "codec", "builtin", "class", "code"],
)
def test_the_message_says_in_what_they_differ(known, other, told):
    assert disagreement(known, other) == told
    assert disagreement(other, known) is not None


def test_a_name_with_half_a_character_is_refused():
    with pytest.raises(ConfigurationError, match="a state's name is not valid text"):
        ValueStateDescriptor("a\ud83d", int)
