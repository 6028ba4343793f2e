"""What a function class must define."""

import pytest

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
from forebay_state_api._engine.methods import record_methods
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


def test_functions_inside_states_define_theirs():
    class Half(AggregateFunction):
        def create_accumulator(self):
            return 0

        def add(self, value, accumulator):
            return accumulator + value

    with pytest.raises(ConfigurationError, match=r"get_result\(accumulator\) and merge\(first"):
        AggregatingStateDescriptor("s", Half(), int)
    with pytest.raises(ConfigurationError, match=r"does not define reduce\(first, second\)"):
        ReducingStateDescriptor("s", type("NoReduce", (ReduceFunction,), {})(), int)
