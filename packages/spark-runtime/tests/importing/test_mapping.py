"""Match variables with states, and report every variable that no state can take."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest
from pyspark.sql import types as T

from forebay_backend_heap.backend import HeapBackend
from forebay_engine.versions.format.key_types import KeyType
from forebay_spark_runtime.importing.mapping import MappingChoices, TakenState, taken_states
from forebay_spark_runtime.importing.tws_query import CONTENT, EXPIRY, Variable
from forebay_state_api import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    SortedMapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.contract.changes import Shape
from forebay_state_api.errors import ConfigurationError
from forebay_state_processor.importing.declared_states import DeclaredStates

KEY = KeyType.of(str)
HOUR = timedelta(hours=1)
HOUR_US = 3_600_000_000
LONG = T.StructType([T.StructField("n", T.LongType())])
TEXT = T.StructType([T.StructField("s", T.StringType())])


class Function(KeyedProcessFunction):
    def open(self, context):
        ttl = StateTtlConfig(HOUR)
        context.get_state(ValueStateDescriptor("total", int))
        context.get_reducing_state(ReducingStateDescriptor("most", max, int))
        context.get_state(ValueStateDescriptor("seen", int, ttl=ttl))
        context.get_list_state(ListStateDescriptor("sales", int, ttl=ttl))
        context.get_map_state(MapStateDescriptor("by_day", str, int))
        context.get_sorted_map_state(SortedMapStateDescriptor("by_time", int, int))

    def process_element(self, row, ctx):
        raise AssertionError


class Timed(Function):
    def on_timer(self, at, ctx):
        raise AssertionError


def variable(name, struct=LONG, shape=Shape.POINT, *, ttl=False, user_key=TEXT):
    kind = struct
    if ttl:
        kind = T.StructType([T.StructField("value", kind), T.StructField(EXPIRY, T.LongType())])
    if shape is Shape.LIST:
        kind = T.ArrayType(kind)
    elif shape is Shape.MAP:
        kind = T.MapType(user_key, kind)
    rows = SimpleNamespace(schema=T.StructType([T.StructField(CONTENT, kind)]))
    return Variable(name=name, shape=shape, has_ttl=ttl, rows=rows)


def query(*variables, timers=None):
    found = None if timers is None else SimpleNamespace(isEmpty=lambda: not timers)
    return SimpleNamespace(variables={one.name: one for one in variables}, timers=found)


def taken(asked, function=None, **wanted):
    states = DeclaredStates.of(function or Function(), key=KEY, uid="counts", backend=HeapBackend)
    return taken_states(asked, states, MappingChoices(**wanted))


def faults(*asked, **wanted):
    with pytest.raises(ConfigurationError) as caught:
        taken(*asked, **wanted)
    return str(caught.value)


def test_a_variable_goes_into_the_state_of_its_name():
    found = taken(
        query(
            variable("total"),
            variable("most"),
            variable("seen", ttl=True),
            variable("sales", shape=Shape.LIST, ttl=True),
            variable("by_day", shape=Shape.MAP),
            variable("by_time", shape=Shape.MAP, user_key=LONG),
        )
    )
    assert found == [
        TakenState(variable="total", state="total", ttl_us=None),
        TakenState(variable="most", state="most", ttl_us=None),
        TakenState(variable="seen", state="seen", ttl_us=HOUR_US),
        TakenState(variable="sales", state="sales", ttl_us=HOUR_US),
        TakenState(variable="by_day", state="by_day", ttl_us=None),
        TakenState(variable="by_time", state="by_time", ttl_us=None),
    ]


def test_names_times_to_live_and_what_is_left_are_the_callers():
    found = taken(
        query(variable("n"), variable("seen", ttl=True), variable("old", TEXT), timers=True),
        states={"n": "total"},
        ttl={"seen": timedelta(minutes=1)},
        without=["old"],
        without_timers=True,
    )
    assert found == [
        TakenState(variable="n", state="total", ttl_us=None),
        TakenState(variable="seen", state="seen", ttl_us=60_000_000),
    ]


def test_a_variable_that_is_mapped_frees_the_state_of_its_name():
    found = taken(query(variable("n"), variable("total")), states={"n": "total"}, without=["total"])
    assert [one.variable for one in found] == ["n"]


def test_all_faults_come_together():
    text = faults(
        query(
            variable("unknown"),
            variable("total", TEXT),
            variable("seen"),
            variable("sales", LONG, Shape.POINT),
            variable("by_day", shape=Shape.MAP, user_key=LONG),
            timers=True,
        )
    )
    assert text.startswith(
        "operator 'counts' cannot take the state over; nothing was written:\n- unknown: "
    )
    for fault in (
        "unknown: the function does not declare 'unknown'; its states are by_day, by_time, most,",
        "total: string does not fit int",
        "seen: it has no TTL on Spark",
        "sales: it is a point on Spark, and 'sales' is a list state",
        "by_day: user key: bigint does not fit str",
        "timers: the query has some, and the function has no on_timer",
    ):
        assert fault in text


def test_a_ttl_that_the_function_lacks_is_a_fault():
    assert "total: it has a TTL on Spark: declare one" in faults(query(variable("total", ttl=True)))


@pytest.mark.parametrize(
    ("wanted", "fault"),
    [
        ({"states": {"x": "total"}}, "x: the mapping names it, and the query's variables are n"),
        ({"ttl": {"x": HOUR}}, "x: the times to live names it"),
        ({"without": ["x"]}, "x: what is left out names it"),
        ({"ttl": {"n": HOUR}}, "n: a time to live was given, and the variable has none"),
        ({"without_timers": True}, "timers: they are left out, and the query's time mode is None"),
    ],
)
def test_what_the_caller_names_in_vain_is_a_fault(wanted, fault):
    assert fault in faults(query(variable("n")), **{"states": {"n": "total"}, **wanted})


def test_a_time_to_live_is_positive():
    asked = query(variable("seen", ttl=True))
    assert "it must be longer than 0" in faults(asked, ttl={"seen": timedelta(0)})


def test_two_variables_cannot_share_a_state():
    asked = query(variable("n"), variable("total"))
    assert "total: the state 'total' takes another variable" in faults(asked, states={"n": "total"})


def test_timers_need_on_timer_only_where_there_are_some():
    assert taken(query(variable("total"), timers=False))
    assert taken(query(variable("total"), timers=True), Timed())
