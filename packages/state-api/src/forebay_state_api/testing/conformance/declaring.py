"""SEMANTICS §4: declaring states, and using them where there is no key."""

from __future__ import annotations

from typing import Any

import pytest

from forebay_state_api.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.errors import ConfigurationError, StateAccessError
from forebay_state_api.testing.conformance.kinds import add
from forebay_state_api.testing.conformance.subject import BackendSubject, Mean, NewJob, Recorded


class DeclarationTests(BackendSubject):
    """Declaring states, and using them where there is no key."""

    def test_two_descriptors_that_disagree_under_one_name(self, new_job: NewJob) -> None:
        job = new_job(ValueStateDescriptor("s", int), ValueStateDescriptor("s", str))
        with pytest.raises(ConfigurationError, match="'s'"):
            job.do("k", ("s.value",))
        job = new_job(ValueStateDescriptor("s", int), ListStateDescriptor("s", int))
        with pytest.raises(ConfigurationError, match="'s'"):
            job.do("k", ("s.clear",))

    def test_one_descriptor_twice_is_one_state(self, new_job: NewJob) -> None:
        job = new_job(ValueStateDescriptor("s", int), ValueStateDescriptor("s", int))
        assert job.do("k", ("s.update", 1), ("s.value",)) == [None, 1]

    def test_a_state_that_is_declared_late_is_refused(self, new_job: NewJob) -> None:
        def late(function: Any, row: Any, ctx: Any) -> None:
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
    def test_access_without_a_current_key_says_so(self, new_job: NewJob, access: Any) -> None:
        def opened(function: Any, context: Any) -> None:
            function.v = context.get_state(ValueStateDescriptor("v", int))
            function.l = context.get_list_state(ListStateDescriptor("l", int))
            function.m = context.get_map_state(MapStateDescriptor("m", str, int))
            function.r = context.get_reducing_state(ReducingStateDescriptor("r", add, int))
            function.a = context.get_aggregating_state(AggregatingStateDescriptor("a", Mean()))
            access(function)

        with pytest.raises(StateAccessError, match="no current key"):
            new_job().run(Recorded(opened, lambda *_: None), [("k",)])
