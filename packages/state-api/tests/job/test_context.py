"""Descriptors that a context takes: by class, subclasses included, not by the name of a class."""

import pytest

from forebay_state_api import (
    AggregateFunction,
    AggregatingStateDescriptor,
    CheckpointedFunction,
    FunctionError,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from forebay_testing import KeyedJob
from forebay_testing.backends.subject import memory_storage
from forebay_testing.reference import ReferenceBackend


class Sum(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value

    def get_result(self, accumulator):
        return accumulator


KEYED = [
    pytest.param("get_state", ValueStateDescriptor, ("s", int), id="value"),
    pytest.param("get_list_state", ListStateDescriptor, ("s", int), id="list"),
    pytest.param("get_map_state", MapStateDescriptor, ("s", str, int), id="map"),
    pytest.param("get_reducing_state", ReducingStateDescriptor, ("s", max, int), id="reducing"),
    pytest.param(
        "get_aggregating_state", AggregatingStateDescriptor, ("s", Sum(), int), id="aggregating"
    ),
]
OPERATOR = [
    pytest.param("get_list_state", ListStateDescriptor, ("s", int), id="list"),
    pytest.param("get_union_list_state", ListStateDescriptor, ("s", int), id="union"),
    pytest.param("get_broadcast_state", MapStateDescriptor, ("s", str, int), id="broadcast"),
]


class Declares(KeyedProcessFunction):
    """Declares a keyed state for each descriptor, and keeps the numbers of the rows in it."""

    def __init__(self, getter, *descriptors):
        self.getter, self.descriptors = getter, descriptors

    def open(self, context):
        self.declare(context)

    def declare(self, place):
        getter = getattr(place, self.getter)
        self.states = [getter(descriptor) for descriptor in self.descriptors]

    def process_element(self, row, ctx):
        for number, state in enumerate(self.states):
            assert state is self.states[0], number
        return [(written(self.states[0], row[1]),)]


class DeclaresOperatorState(Declares, CheckpointedFunction):
    """Declares an operator state for each descriptor."""

    def open(self, context):
        """Declare no keyed state."""

    def initialize_state(self, context):
        self.declare(context.operator_state_store)

    def snapshot_state(self, context):
        """Keep what the record method wrote."""


def written(state, number):
    """Write ``number`` to ``state``, and return what a read finds."""
    if hasattr(state, "put"):
        state.put("k", number)
        return state.get("k")
    if hasattr(state, "value"):
        state.update(number)
        return state.value()
    state.add(number)
    held = state.get()
    return held if isinstance(held, int) else list(held)[-1]


@pytest.fixture
def job():
    return KeyedJob(ReferenceBackend, memory_storage())


CASES = [(Declares, *case.values) for case in KEYED]
CASES += [(DeclaresOperatorState, *case.values) for case in OPERATOR]
IDS = [f"keyed-{case.id}" for case in KEYED] + [f"operator-{case.id}" for case in OPERATOR]


@pytest.mark.parametrize(("function", "getter", "kind", "arguments"), CASES, ids=IDS)
def test_a_subclass_declares_the_state_of_its_base(job, function, getter, kind, arguments):
    class Derived(kind):
        pass

    descriptors = [Derived(*arguments), kind(*arguments), Derived(*arguments)]
    assert job.run(function(getter, *descriptors), [("key", 7)]) == [(7,)]


@pytest.mark.parametrize(("function", "getter", "kind", "arguments"), CASES, ids=IDS)
@pytest.mark.parametrize("is_declared", [False, True], ids=["first", "declared before"])
def test_a_foreign_class_of_the_same_name_is_refused(
    job, function, getter, kind, arguments, is_declared
):
    class Foreign:
        name, kind, key_type, value_type, ttl = "s", "value", str, int, None

    Foreign.__name__ = Foreign.__qualname__ = kind.__name__
    known = [kind(*arguments)] if is_declared else []
    with pytest.raises(
        FunctionError, match=rf"a {kind.__name__}, (got|not) <\S+ object"
    ) as failure:
        job.run(function(getter, *known, Foreign()), [("key", 7)])
    assert isinstance(failure.value.__cause__, TypeError)


@pytest.mark.parametrize(("getter", "kind", "arguments"), KEYED)
def test_a_subclass_of_another_kind_is_refused_with_its_getter(job, getter, kind, arguments):
    class Derived(kind):
        pass

    other = "get_state" if getter != "get_state" else "get_map_state"
    with pytest.raises(
        FunctionError, match=rf"got Derived\('s'\), which is for context\.{getter}\b"
    ):
        job.run(Declares(other, Derived(*arguments)), [("key", 7)])
