"""Values, namespaces and merges that states refuse before a backend is asked."""

from __future__ import annotations

from decimal import Decimal

import pytest

from forebay_state_api.errors import FunctionError
from forebay_state_api.job.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    SortedMapStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.job.ttl import StateTtlConfig
from forebay_testing.backends.kinds import KindSubject, add
from forebay_testing.backends.subject import MANNERS, SECOND, Mean, Recorded
from forebay_testing.scripts import REFUSED, declared

from ..subjects import OnReference


class TestRefusals(OnReference, KindSubject):
    """In every style of function, since each has methods of its own."""

    @pytest.fixture(params=list(MANNERS))
    def manner(self, request):
        return MANNERS[request.param]

    @pytest.mark.parametrize(
        ("kind", "access", "wanted"),
        [
            (ValueStateDescriptor("s"), ("s.update", Mean()), "expected Any.*Codec"),
            (ListStateDescriptor("s"), ("s.add_all", [1, Mean()]), "expected Any.*Codec"),
            (MapStateDescriptor("s"), ("s.put", "x", [Mean()]), "expected Any.*Codec"),
            (ReducingStateDescriptor("s", add), ("s.add", Mean()), "expected Any.*Codec"),
            (ValueStateDescriptor("s", int), ("s.update", "x"), "expected int"),
            (ListStateDescriptor("s", int), ("s.add", "x"), "expected int"),
            (MapStateDescriptor("s", str, int), ("s.put", "x", "y"), "expected int"),
            (MapStateDescriptor("s", str, int), ("s.contains", 1), "expected str"),
            (AggregatingStateDescriptor("s", Mean(), int), ("s.add", 1.0), "expected int"),
        ],
        ids=lambda one: one if isinstance(one, str) else None,
    )
    def test_a_value_of_another_class_is_refused_by_the_name_of_the_state(
        self, new_job, manner, kind, access, wanted
    ):
        job = new_job(kind, **manner._asdict())
        who = f"state 's' of operator '{job.uid}'"
        with pytest.raises(FunctionError, match=f"{who}: {wanted}") as caught:
            job.do("k", access)
        assert isinstance(caught.value.__cause__, TypeError)

    @pytest.mark.parametrize(
        "refused",
        [
            ("!l.add", None),
            ("!l.add_all", None),
            ("!l.update", None),
            ("!l.add_all", [2, None]),
            ("!l.update", [None]),
        ],
        ids=str,
    )
    def test_none_in_a_list_is_refused_at_the_call_and_changes_nothing(self, kinds, refused):
        kinds.do("k", ("l.add", 1))
        assert kinds.do("k", refused, ("l.get",)) == [REFUSED, [1]]
        assert kinds.do("k", ("l.get",)) == [[1]]

    def test_none_as_a_user_key_is_refused(self, kinds):
        calls = [("!m.put", None, 1), ("!m.get", None), ("!m.contains", None), ("!m.remove", None)]
        assert kinds.do("k", *calls, ("!m.put_all", {"a": 1, None: 2})) == [REFUSED] * 5
        assert kinds.do("k", ("m.items",)) == [[]]

    @pytest.mark.parametrize("namespace", [float("nan"), (1, float("nan")), ["a"], object()])
    def test_what_equals_nothing_or_is_not_plain_is_no_namespace(self, kinds, namespace):
        for access in (("namespace", namespace), ("r.merge_namespaces", "w1", [namespace])):
            with pytest.raises(FunctionError) as caught:
                kinds.do("k", access)
            assert isinstance(caught.value.__cause__, TypeError | ValueError)
        assert kinds.do("k", ("v.value",)) == [None]

    @pytest.mark.parametrize("ttl", [None, StateTtlConfig(SECOND)], ids=["without TTL", "TTL"])
    def test_only_kinds_that_can_merge_offer_it(self, new_job, ttl):
        able = [
            ListStateDescriptor("l", int, ttl=ttl),
            ReducingStateDescriptor("r", add, int, ttl=ttl),
            AggregatingStateDescriptor("a", Mean(), ttl=ttl),
        ]
        unable = [
            ValueStateDescriptor("v", int, ttl=ttl),
            MapStateDescriptor("m", str, int, ttl=ttl),
        ]

        def opened(f, context):
            offers = [
                hasattr(declared(context, one), "merge_namespaces") for one in [*able, *unable]
            ]
            assert offers == [True, True, True, False, False]

        new_job().run(Recorded(opened, lambda *_: None), [("k",)])

    @pytest.mark.parametrize(
        "key_type", [float, Decimal, tuple[float, str]], ids=["float", "Decimal", "tuple"]
    )
    def test_nan_is_no_key_and_no_bound(self, new_job, manner, key_type):
        key = {float: 1.0, Decimal: Decimal(1)}.get(key_type, (1.0, ""))
        nan = {float: float("nan"), Decimal: Decimal("nan")}.get(key_type, (float("nan"), ""))
        job = new_job(SortedMapStateDescriptor("s", key_type, int), **manner._asdict())
        job.do("k", ("s.put", key, 1))
        bounds = [nan, nan[:1]] if isinstance(nan, tuple) else [nan]
        reads = [(f"s.{call}", nan) for call in ("get", "contains", "remove")]
        writes = [("s.put", nan, 2), ("s.put_all", {nan: 2})]
        ranges = [
            (f"s.{call}", *part)
            for call in ("range", "first", "last", "remove_range")
            for bound in bounds
            for part in ((bound,), (None, bound))
        ]
        for call in (*reads, *writes, *ranges):
            with pytest.raises(FunctionError, match=r"TypeError: .* NaN, which has no place"):
                job.do("k", call)
        assert job.do("k", ("s.range",)) == [[(key, 1)]]
