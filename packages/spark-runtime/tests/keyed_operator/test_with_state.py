"""The shortcuts for one value per key: their output, their state, and refused functions."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import NamedTuple

import pytest

from forebay_spark_runtime.keyed_operator.with_state import STATE, MapWithState
from forebay_state_api import FunctionError, StateTtlConfig, ValueStateDescriptor
from forebay_state_api.errors import ConfigurationError


class Row(NamedTuple):
    user: str
    n: int


def running(row, total):
    total = (total or 0) + row.n
    return (row.user, total), total


def every_second(row, held):
    return ([], row.n) if held is None else ([(row.user, held), (row.user, row.n)], None)


async def asynchronous(row, value):
    return row, value


def generator(row, value):
    yield row, value


class Called:
    async def __call__(self, row, value):
        return row, value


VALUE = ValueStateDescriptor(STATE, int)


def test_one_row_for_each_and_the_value_is_kept(harness):
    made = harness(MapWithState(running, many=False, state_type=int), "user")
    rows = [Row("a", 1), Row("b", 5), Row("a", 2)]
    assert sorted(made.process(rows)) == [("a", 1), ("a", 3), ("b", 5)]
    made.restart(parallelism=3)
    assert made.process([Row("a", 4)]) == [("a", 7)]
    assert made.state(VALUE, "a") == 7


def test_any_number_of_rows_and_none_clears_the_value(harness):
    made = harness(MapWithState(every_second, many=True, state_type=int), "user")
    assert made.process([Row("a", 1)]) == []
    assert made.state(VALUE, "a") == 1
    assert made.process([Row("a", 2)]) == [("a", 1), ("a", 2)]
    assert made.state(VALUE, "a") is None


def test_a_value_with_a_time_to_live_expires(harness):
    ttl = StateTtlConfig(timedelta(minutes=1))
    made = harness(MapWithState(running, many=False, ttl=ttl), "user")
    assert made.process([Row("a", 1)]) == [("a", 1)]
    made.clock.advance(timedelta(minutes=2))
    assert made.process([Row("a", 1)]) == [("a", 1)]


@pytest.mark.parametrize("result", [None, ("a", 1, 2), ["a", 1], "ab"], ids=repr)
def test_a_result_that_is_not_a_pair_is_named(harness, result):
    made = harness(MapWithState(lambda *_: result, many=True), "user")
    with pytest.raises(FunctionError) as caught:
        made.process([Row("a", 1)])
    assert "flat_map_with_state returns (rows, value)" in str(caught.value.__cause__)


@pytest.mark.parametrize("out", ["a", 1, None, [("a", 1)]])
def test_a_row_without_the_value_is_refused(harness, out):
    made = harness(MapWithState(lambda row, value: (out, 1), many=False), "user")
    with pytest.raises(FunctionError, match=r"map_with_state returns \(row, value\), and returned"):
        made.process([Row("a", 1)])


def failing(row, value):
    return 1 / 0


def test_errors_name_the_function(harness):
    made = harness(MapWithState(failing, many=False), "user")
    with pytest.raises(FunctionError, match=r"^failing\.map_with_state \(operator .* raised Z"):
        made.process([Row("a", 1)])


@pytest.mark.parametrize("fn", [asynchronous, generator, Called(), dict, 3])
def test_an_object_that_is_not_a_plain_callable_is_refused(fn):
    with pytest.raises(ConfigurationError, match="map_with_state takes a plain callable"):
        MapWithState(fn, many=False)
    MapWithState(functools.partial(running), many=False)


@pytest.mark.parametrize("many", [True, False])
@pytest.mark.parametrize("state_type", [set[int], "a variant", "v int, v int", object(), "no type"])
def test_a_type_of_no_state_is_refused_where_it_is_given(state_type, many):
    method = "flat_map_with_state" if many else "map_with_state"
    with pytest.raises(ConfigurationError, match=rf"^state_type= of {method}: "):
        MapWithState(running, many=many, state_type=state_type)
