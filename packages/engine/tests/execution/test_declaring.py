"""Declaring states (docs/reference/api.md), and using them where there is no key."""

from __future__ import annotations

import pytest

from forebay_state_api.errors import ConfigurationError, StateAccessError
from forebay_state_api.job.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.job.futures import StateFuture
from forebay_state_api.job.ttl import StateTtlConfig
from forebay_testing.backends.kinds import add
from forebay_testing.backends.subject import SECOND, Mean, Recorded
from forebay_testing.scripts import declared

from ..subjects import OnReference

TTL = StateTtlConfig(SECOND)
VALUE = ValueStateDescriptor("s", int)


class Rounded(Mean):
    """A function that differs from the one above it."""


class TestDeclaring(OnReference):
    """Declaring states, and using them where there is no key."""

    @pytest.mark.parametrize(
        ("first", "second", "wherein"),
        [
            (VALUE, ValueStateDescriptor("s", str), r"type \(int and str\)"),
            (VALUE, ListStateDescriptor("s", int), r"kind \(value and list\)"),
            (VALUE, ValueStateDescriptor("s", int, default=1), r"default \(None and 1\)"),
            (VALUE, ValueStateDescriptor("s", int, ttl=TTL), r"ttl \(None and StateTtlConfig"),
            (
                MapStateDescriptor("s", int, int),
                MapStateDescriptor("s", str, int),
                r"key type \(int and str\)",
            ),
            (
                ReducingStateDescriptor("s", add, int),
                ReducingStateDescriptor("s", max, int),
                r"reduce_function \(add of .* and <built-in function max>\)",
            ),
            (
                AggregatingStateDescriptor("s", Mean()),
                AggregatingStateDescriptor("s", Rounded()),
                r"aggregate_function \(a Mean and a Rounded\)",
            ),
        ],
    )
    def test_two_descriptors_that_disagree_under_one_name(self, new_job, first, second, wherein):
        with pytest.raises(ConfigurationError, match=f"disagree under the name 's', in {wherein}"):
            new_job(first, second).do("k", ("s.clear",))

    @pytest.mark.parametrize(
        "made",
        [
            lambda: ValueStateDescriptor("s", int, default=1),
            lambda: ListStateDescriptor("s", list[int], ttl=StateTtlConfig(SECOND)),
            lambda: MapStateDescriptor("s", str, int),
            lambda: ReducingStateDescriptor("s", lambda first, second: first + second, int),
            lambda: AggregatingStateDescriptor("s", Mean()),
        ],
    )
    def test_one_descriptor_made_twice_is_one_state(self, new_job, made):
        states = []

        def opened(function, context):
            states.extend(declared(context, made()) for _ in range(2))

        new_job().run(Recorded(opened, lambda *_: None), [("k",)])
        assert states[0] is states[1]

    def test_a_state_that_is_declared_late_is_refused(self, new_job):
        def late(function, row, ctx):
            ctx.get_state(ValueStateDescriptor("late", int))

        with pytest.raises(ConfigurationError, match=r"late.*open"):
            new_job().run(Recorded(lambda function, context: None, late), [("k",)])

    @pytest.mark.parametrize(
        "access",
        [
            lambda f: f.v.value(),
            lambda f: f.v.update(1),
            lambda f: f.v.async_value(),
            lambda f: f.l.add(1),
            lambda f: f.l.async_get(),
            lambda f: f.m.put("a", 1),
            lambda f: f.m.async_items(),
            lambda f: f.r.add(1),
            lambda f: f.r.async_get(),
            lambda f: f.a.async_add(1.0),
            lambda f: f.v.clear(),
            lambda f: f.l.clear(),
        ],
    )
    def test_access_without_a_current_key_says_so(self, new_job, access):
        def opened(function, context):
            function.v = context.get_state(ValueStateDescriptor("v", int))
            function.l = context.get_list_state(ListStateDescriptor("l", int))
            function.m = context.get_map_state(MapStateDescriptor("m", str, int))
            function.r = context.get_reducing_state(ReducingStateDescriptor("r", add, int))
            function.a = context.get_aggregating_state(AggregatingStateDescriptor("a", Mean()))
            access(function)

        with pytest.raises(StateAccessError, match="no current key"):
            new_job().run(Recorded(opened, lambda *_: None), [("k",)])

    @pytest.mark.parametrize(
        "misuse",
        [
            lambda context: context.set_current_namespace("w"),
            lambda context: StateFuture().then_accept(lambda _: None),
        ],
        ids=["namespace", "future"],
    )
    def test_what_belongs_to_a_record_is_refused_without_one(self, new_job, misuse):
        function = Recorded(lambda _, context: misuse(context), lambda *_: None)
        message = r"no current record: a namespace is set, .*not in open\(\)"
        with pytest.raises(StateAccessError, match=message):
            new_job().run(function, [("k",)])
