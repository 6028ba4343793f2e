"""The methods that a function class must define."""

import pytest

from forebay_engine.execution.record_methods import record_methods
from forebay_state_api import (
    AggregateFunction,
    AggregatingStateDescriptor,
    FlatMapFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    ReduceFunction,
    ReducingStateDescriptor,
)
from forebay_state_api.errors import ConfigurationError


@pytest.mark.parametrize(
    ("base", "wanted"),
    [
        (KeyedProcessFunction, r"process_element\(row, ctx\)"),
        (
            KeyedCoProcessFunction,
            r"process_element1\(row, ctx\) and process_element2\(row, ctx\)",
        ),
        (MapFunction, r"map\(row\)"),
        (FlatMapFunction, r"flat_map\(row\)"),
    ],
)
def test_a_function_without_its_method_is_refused(base, wanted):
    class Misspelled(base):
        def procces_element(self, row, ctx):
            return []

    with pytest.raises(ConfigurationError, match=f"Misspelled does not define {wanted}$"):
        record_methods(Misspelled())


class Half(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value


def test_functions_inside_states_define_theirs():
    with pytest.raises(ConfigurationError, match=r"does not define get_result\(accumulator\)$"):
        AggregatingStateDescriptor("s", Half(), int)
    with pytest.raises(ConfigurationError, match=r"does not define reduce\(first, second\)"):
        ReducingStateDescriptor("s", type("NoReduce", (ReduceFunction,), {})(), int)


class OpenedReduce(ReduceFunction):
    def open(self, context):
        """Never called inside a state."""

    def reduce(self, first, second):
        return first


class ClosedAggregate(AggregateFunction):
    def close(self):
        """Never called inside a state."""

    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator

    def get_result(self, accumulator):
        return accumulator


@pytest.mark.parametrize(
    ("make", "fn", "method"),
    [
        (ReducingStateDescriptor, OpenedReduce, "open"),
        (AggregatingStateDescriptor, ClosedAggregate, "close"),
    ],
)
def test_functions_inside_states_have_no_life_of_their_own(make, fn, method):
    says = f"state 's': {fn.__name__} defines {method}, which is never called"
    with pytest.raises(ConfigurationError, match=says):
        make("s", fn())


def test_aggregate_functions_are_plain():
    class Asks(Half):
        async def add(self, value, accumulator):
            return accumulator

        async def get_result(self, accumulator):
            return accumulator

    with pytest.raises(ConfigurationError, match=r"'s': .*Asks defines add and get_result as"):
        AggregatingStateDescriptor("s", Asks(), int)


def test_merge_is_needed_where_namespaces_are_merged():
    class Sum(Half):
        def get_result(self, accumulator):
            return accumulator

    made = AggregatingStateDescriptor("s", Sum(), int).aggregate_function
    with pytest.raises(NotImplementedError, match=r"Sum does not define merge\(first, second\)"):
        made.merge(1, 2)


class OnInstances:
    def __get__(self, instance, owner):
        if instance is None:
            raise AttributeError
        return 1


def test_what_an_instance_defines_counts_and_nothing_else_is_looked_at():
    class Made(MapFunction):
        odd = OnInstances()

        def __init__(self):
            self.map = lambda row: row

    assert len(record_methods(Made())) == 1


async def awaiting(*_):
    return 1


def yielding(*_):
    yield 1


async def yielding_later(*_):
    yield 1


class Mean(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value

    def get_result(self, accumulator):
        return accumulator


@pytest.mark.parametrize("method", [awaiting, yielding, yielding_later])
def test_functions_inside_states_are_plain(method):
    function = type("Sum", (ReduceFunction,), {"reduce": method})()
    for given in (method, function):
        with pytest.raises(ConfigurationError, match=r"'s': reduce_function takes .* plain"):
            ReducingStateDescriptor("s", given, int)
    for name in ("create_accumulator", "add", "get_result", "merge"):
        function = type("Odd", (Mean,), {name: method})()
        with pytest.raises(ConfigurationError, match=rf"'s': Odd defines {name} as async or a"):
            AggregatingStateDescriptor("s", function)
