"""The kinds of state (docs/reference/state.md), in every style of caller."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Final
from zoneinfo import ZoneInfo

import pytest

from forebay_state_api.contract.changes import ABSENT
from forebay_state_api.job.aggregation import AggregateFunction
from forebay_state_api.job.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.settings import EngineSettings
from forebay_testing.backends.subject import BackendSubject, Manner, Mean, NewJob, Recorded
from forebay_testing.job import KeyedJob


def add(first: int, second: int) -> int:
    """Reduce by addition."""
    return first + second


NEW_YEAR: Final = datetime(2024, 1, 1, tzinfo=UTC)
BERLIN: Final = ZoneInfo("Europe/Berlin")
SWITCHES: Final = {
    "spring": (
        datetime(2024, 3, 31, 0, 59, 50, tzinfo=UTC),
        datetime(2024, 3, 31, 1, 0, 10, tzinfo=UTC),
    ),
    "autumn": (
        datetime(2024, 10, 27, 0, 45, tzinfo=UTC),
        datetime(2024, 10, 27, 1, 15, tzinfo=UTC),
    ),
}
"""Pairs of instants, before and after the clocks of Berlin are changed."""
EQUAL: Final = [
    (1, True),
    (1.0, 1),
    (0.0, -0.0),
    (0.5, Decimal("0.50")),
    (Decimal("1.0"), Decimal("1.00")),
    (Decimal("1e20"), 10**20),
    (Decimal("inf"), float("inf")),
    (("w", 1), ("w", True)),
    (NEW_YEAR, NEW_YEAR.astimezone(timezone(timedelta(hours=1)))),
]
"""Namespaces that are equal, but not identical."""


class Latest(AggregateFunction[datetime, list[datetime], list[datetime]]):
    """Keeps the added instants, in the zone of Berlin."""

    def create_accumulator(self) -> list[datetime]:
        return []

    def add(self, value: datetime, accumulator: list[datetime]) -> list[datetime]:
        return [*accumulator, value.astimezone(BERLIN)]

    def get_result(self, accumulator: list[datetime]) -> list[datetime]:
        return accumulator

    def merge(self, first: list[datetime], second: list[datetime]) -> list[datetime]:
        return first + second


class KindSubject(BackendSubject):
    """A job with one state of each kind."""

    @pytest.fixture
    def kinds(self, new_job: NewJob, manner: Manner) -> KeyedJob:
        """A job with one state of each kind."""
        Mean.created = 0
        return new_job(
            ValueStateDescriptor("v", int),
            ValueStateDescriptor("d", int, default=7),
            ListStateDescriptor("l", int),
            MapStateDescriptor("m", str, int | None),
            ReducingStateDescriptor("r", add, int),
            AggregatingStateDescriptor("a", Mean(), tuple[int, float]),
            **manner._asdict(),
        )


class KindTests(KindSubject):
    """The operations of each kind, within a micro-batch and across several."""

    # -- value --------------------------------------------------------------------------------

    def test_an_unset_value_is_its_default_else_none(self, kinds: KeyedJob) -> None:
        assert kinds.do("k", ("v.value",), ("d.value",)) == [None, 7]
        kinds.do("k", ("d.update", 8))
        assert kinds.do("k", ("d.value",), ("d.clear",), ("d.value",)) == [8, None, 7]
        assert kinds.do("k", ("d.value",)) == [7]

    def test_a_value_is_what_was_last_stored(self, kinds: KeyedJob) -> None:
        assert kinds.do("k", ("v.update", 1), ("v.value",), ("v.update", 2)) == [None, 1, None]
        assert kinds.do("k", ("v.value",)) == [2]
        assert kinds.do("other", ("v.value",)) == [None]

    def test_updating_with_none_clears(self, kinds: KeyedJob) -> None:
        kinds.do("k", ("v.update", 1))
        assert kinds.do("k", ("v.update", None), ("v.value",)) == [None, None]
        assert kinds.do("k", ("v.value",)) == [None]
        assert kinds.peek(kinds.descriptors[0], "k") is ABSENT

    # -- instants -----------------------------------------------------------------------------

    @pytest.mark.parametrize("is_declared", [True, False], ids=["declared", "undeclared"])
    @pytest.mark.parametrize("switch", SWITCHES)
    def test_instants_come_back_in_utc(
        self,
        new_job: NewJob,
        manner: Manner,
        switch: str,
        *,
        is_declared: bool,
    ) -> None:
        def kept(kind: Any) -> Any:
            return kind if is_declared else None

        def latest(first: datetime, second: datetime) -> datetime:
            return max(first, second).astimezone(BERLIN)

        job = new_job(
            ValueStateDescriptor("v", kept(datetime)),
            ListStateDescriptor("l", kept(tuple[str, datetime | None])),
            MapStateDescriptor("m", kept(datetime), kept(dict[datetime, list[datetime]])),
            ReducingStateDescriptor("r", latest, kept(datetime)),
            AggregatingStateDescriptor("a", Latest(), kept(list[datetime])),
            **manner._asdict(),
        )
        first, second = SWITCHES[switch]
        one, other = first.astimezone(BERLIN), second.astimezone(BERLIN)
        writes = [
            *[("v.update", one), ("l.add_all", [("x", one), ("y", None)]), ("l.add", ("z", other))],
            *[("m.put", one, {one: [other]}), ("r.add", one), ("r.add", other), ("a.add", one)],
        ]
        reads = [("v.value",), ("l.get",), ("m.items",), ("m.get", one), ("r.get",), ("a.get",)]
        expected = [
            first,
            [("x", first), ("y", None), ("z", second)],
            [(first, {first: [second]})],
            {first: [second]},
            second,
            [first],
        ]
        found = [job.do("k", *writes, *reads)[len(writes) :], job.do("k", *reads)]
        job.restart()
        found.append(job.do("k", *reads))
        assert list(map(repr, found)) == [repr(expected)] * 3, "zones count"

    def test_a_datetime_without_a_zone_stays_as_it_is(
        self, new_job: NewJob, manner: Manner
    ) -> None:
        wall = datetime(2024, 10, 27, 2, 30, fold=1)  # noqa: DTZ001 - without a zone
        states = [ValueStateDescriptor("v", datetime), ValueStateDescriptor("any")]
        job = new_job(*states, **manner._asdict())
        job.do("k", ("v.update", wall), ("any.update", wall))
        job.restart()
        assert repr(job.do("k", ("v.value",), ("any.value",))) == repr([wall, wall])

    # -- list ---------------------------------------------------------------------------------

    def test_a_list_keeps_the_order_of_insertion(self, kinds: KeyedJob) -> None:
        kinds.do("k", ("l.add", 3), ("l.add_all", [1, 2]))
        assert kinds.do("k", ("l.add", 0), ("l.get",)) == [None, [3, 1, 2, 0]]
        assert kinds.do("k", ("l.get",)) == [[3, 1, 2, 0]]

    def test_updating_with_an_empty_list_empties(self, kinds: KeyedJob) -> None:
        kinds.do("k", ("l.add_all", [1, 2]))
        assert kinds.do("k", ("l.update", []), ("l.get",), ("l.add", 5)) == [None, [], None]
        assert kinds.do("k", ("l.get",)) == [[5]]
        kinds.do("k", ("l.update", []))
        assert kinds.do("k", ("l.get",)) == [[]]

    def test_adding_an_empty_list_does_nothing(self, kinds: KeyedJob) -> None:
        kinds.do("k", ("l.add_all", []))
        assert kinds.do("k", ("l.add", 1), ("l.add_all", []), ("l.get",)) == [None, None, [1]]

    def test_a_list_is_replaced_and_cleared(self, kinds: KeyedJob) -> None:
        kinds.do("k", ("l.add_all", [1, 2, 3]))
        assert kinds.do("k", ("l.update", [9, 8]), ("l.add", 7), ("l.get",))[2] == [9, 8, 7]
        assert kinds.do("k", ("l.get",), ("l.clear",), ("l.get",)) == [[9, 8, 7], None, []]
        assert kinds.do("k", ("l.get",)) == [[]]

    # -- map ----------------------------------------------------------------------------------

    def test_a_missing_entry_is_none_and_removing_it_is_no_error(self, kinds: KeyedJob) -> None:
        missing = [("m.get", "x"), ("m.contains", "x"), ("m.remove", "x"), ("m.is_empty",)]
        assert kinds.do("k", *missing) == [None, False, None, True]
        kinds.do("k", ("m.put", "y", 1))
        assert kinds.do("k", *missing) == [None, False, None, False]

    def test_a_none_that_was_put_is_there(self, kinds: KeyedJob) -> None:
        kinds.do("k", ("m.put", "x", None))
        looks = [("m.contains", "x"), ("m.get", "x"), ("m.items",), ("m.is_empty",)]
        assert kinds.do("k", *looks) == [True, None, [("x", None)], False]
        kinds.do("k", ("m.remove", "x"))
        assert kinds.do("k", *looks) == [False, None, [], True]

    def test_put_all_merges(self, kinds: KeyedJob) -> None:
        kinds.do("k", ("m.put_all", {"a": 1, "b": 2}))
        assert kinds.do("k", ("m.put_all", {"b": 3, "c": 4}), ("m.items",))[1] == [
            ("a", 1),
            ("b", 3),
            ("c", 4),
        ]
        assert kinds.do("k", ("m.keys",), ("m.values",)) == [["a", "b", "c"], [1, 3, 4]]

    def test_entries_are_put_removed_and_cleared(self, kinds: KeyedJob) -> None:
        kinds.do("k", ("m.put_all", {"a": 1, "b": 2, "c": 3}))
        kinds.do("k", ("m.remove", "a"), ("m.put", "d", 4))
        assert kinds.do("k", ("m.keys",), ("m.get", "a"), ("m.get", "d")) == [
            ["b", "c", "d"],
            None,
            4,
        ]
        after = kinds.do("k", ("m.clear",), ("m.put", "a", 9), ("m.get", "b"), ("m.items",))
        assert after == [None, None, None, [("a", 9)]]
        assert kinds.do("k", ("m.items",), ("m.contains", "c")) == [[("a", 9)], False]
        assert kinds.do("k", ("m.clear",), ("m.is_empty",)) == [None, True]
        assert kinds.do("k", ("m.is_empty",), ("m.items",)) == [True, []]

    def test_maps_and_lists_work_like_those_of_python(
        self, new_job: NewJob, engine_settings: EngineSettings
    ) -> None:
        def opened(f: Any, context: Any) -> None:
            f.m = context.get_map_state(MapStateDescriptor("m", str, int | None))
            f.l = context.get_list_state(ListStateDescriptor("l", int))

        def process(f: Any, row: Any, ctx: Any) -> list[Any]:
            f.m["a"], f.m["b"], f.m["n"] = 1, 2, None
            del f.m["b"]
            del f.m["missing"]
            f.l.add_all(number for number in (1, 2))
            seen = f.m["a"], f.m["missing"], "a" in f.m, "b" in f.m, "n" in f.m
            return [(*seen, sorted(f.m), list(f.l))]

        job = new_job(settings=engine_settings)
        expected = [(1, None, True, False, True, ["a", "n"], [1, 2])]
        assert job.run(Recorded(opened, process), [("k",)]) == expected
        again = job.run(Recorded(opened, lambda f, *_: [(sorted(f.m), list(f.l))]), [("k",)])
        assert again == [(["a", "n"], [1, 2])]

    # -- reducing and aggregating -------------------------------------------------------------

    def test_a_reducing_state_reduces(self, kinds: KeyedJob) -> None:
        assert kinds.do("k", ("r.get",), ("r.add", 1), ("r.get",)) == [None, None, 1]
        assert kinds.do("k", ("r.add", 2), ("r.add", 3), ("r.get",)) == [None, None, 6]
        assert kinds.do("k", ("r.get",), ("r.clear",), ("r.get",), ("r.add", 5)) == [
            6,
            None,
            None,
            None,
        ]
        assert kinds.do("k", ("r.get",)) == [5]

    def test_an_aggregating_state_applies_the_result_on_reading_only(self, kinds: KeyedJob) -> None:
        assert kinds.do("k", ("a.get",)) == [None]
        assert Mean.created == 0, "reading an unset state makes no accumulator"
        kinds.do("k", ("a.add", 1.0), ("a.add", 2.0))
        assert Mean.created == 1
        assert kinds.do("k", ("a.get",), ("a.add", 6.0), ("a.get",)) == [1.5, None, 3.0]
        assert kinds.peek(kinds.descriptors[5], "k") == (3, 9.0)
        assert kinds.do("k", ("a.clear",), ("a.get",)) == [None, None]
        assert kinds.do("k", ("a.get",)) == [None]

    def test_all_requests_of_a_record_see_the_ones_before(self, kinds: KeyedJob) -> None:
        kinds.do(
            "k", ("r.add", 1), ("a.add", 4.0), ("l.add", 1), ("m.put", "x", 1), ("v.update", 1)
        )
        results = kinds.do(
            "k",
            ("r.add", 2),
            ("r.clear",),
            ("r.add", 3),
            ("r.get",),
            ("a.clear",),
            ("a.add", 8.0),
            ("a.get",),
            ("l.clear",),
            ("l.get",),
            ("m.remove", "x"),
            ("m.get", "x"),
            ("v.clear",),
            ("v.value",),
        )
        read = {3: 3, 6: 8.0, 8: [], 10: None, 12: None}
        assert {n: results[n] for n in read} == read
        after = kinds.do("k", ("r.get",), ("a.get",), ("l.get",), ("m.items",), ("v.value",))
        assert after == [3, 8.0, [], [], None]

    # -- namespaces ---------------------------------------------------------------------------

    def test_a_request_belongs_to_the_namespace_that_was_current(self, kinds: KeyedJob) -> None:
        kinds.do("k", ("v.update", 0), ("namespace", "w1"), ("v.update", 1), ("l.add", 1))
        results = kinds.do(
            "k",
            ("v.value",),
            ("namespace", "w1"),
            ("v.value",),
            ("l.get",),
            ("namespace", ("w", 2)),
            ("v.value",),
            ("v.update", 2),
            ("namespace", None),
            ("v.value",),
            ("l.get",),
        )
        assert results == [0, None, 1, [1], None, None, None, None, 0, []]
        assert kinds.do("k", ("v.value",)) == [0], "each record starts in the default namespace"
        assert kinds.peek(kinds.descriptors[0], "k", ("w", 2)) == 2

    @pytest.mark.parametrize("equal", EQUAL, ids=repr)
    def test_namespaces_that_are_equal_are_one(
        self, new_job: NewJob, equal: tuple[Any, Any]
    ) -> None:
        job = new_job(ValueStateDescriptor("v", int), ListStateDescriptor("l", int))
        one, other = equal
        reads = [("v.value",), ("l.get",)]
        job.do("k", ("namespace", one), ("v.update", 1), ("l.add", 1))
        for first, second in ((one, other), (other, one)):
            job.restart()
            asked = job.do("k", ("namespace", first), *reads, ("namespace", second), *reads)
            assert asked == [None, 1, [1], None, 1, [1]]
        job.do("k", ("l.merge_namespaces", other, [one]), ("l.merge_namespaces", "all", [other]))
        assert job.do("k", ("namespace", one), ("l.get",)) == [None, []]

    def test_namespaces_merge_and_sources_end_empty(self, kinds: KeyedJob) -> None:
        for namespace, number in (("w1", 1), ("w2", 2)):
            states = [("r.add", number), ("a.add", float(number)), ("l.add_all", [number] * 2)]
            kinds.do("k", ("namespace", namespace), *states)
        merge = (["w1", "w2", "absent"],)
        kinds.do("k", *((f"{name}.merge_namespaces", "w2", *merge) for name in ("r", "a", "l")))
        reads = [("r.get",), ("a.get",), ("l.get",)]
        assert kinds.do("k", ("namespace", "w2"), *reads) == [None, 3, 1.5, [2, 2, 1, 1]]
        assert kinds.do("k", ("namespace", "w1"), *reads) == [None, None, None, []]
        assert kinds.do("k", ("namespace", "absent"), *reads) == [None, None, None, []]

    def test_merging_into_an_empty_target_and_from_nothing(self, kinds: KeyedJob) -> None:
        kinds.do("k", ("namespace", "w1"), ("r.add", 5), ("l.add", 5))
        kinds.do("k", ("r.merge_namespaces", "new", ["w1"]), ("l.merge_namespaces", "new", ["w1"]))
        kinds.do("k", ("r.merge_namespaces", "none", ["w1"]), ("l.merge_namespaces", "none", []))
        assert kinds.do("k", ("namespace", "new"), ("r.get",), ("l.get",)) == [None, 5, [5]]
        assert kinds.do("k", ("namespace", "none"), ("r.get",), ("l.get",)) == [None, None, []]


class KeysOfMapsTests(BackendSubject):
    """User keys of every type are distinguished."""

    @pytest.mark.parametrize(
        ("key_type", "keys"),
        [
            (bytes, [b"", b"a", b"ab", b"a\x00", b"a\x00b", b"abc"]),
            (str, ["", "a", "ab", "abc", "a\x00b", "ä"]),
            (tuple[str, str], [("a", "bc"), ("ab", "c"), ("", "abc"), ("abc", "")]),
            (None, [1, True, 1.0, "1", b"1", (1,), (1, 1)]),
        ],
        ids=["bytes", "str", "tuple", "untyped"],
    )
    def test_user_keys_that_are_prefixes_or_alike_never_mix(
        self, new_job: NewJob, engine_settings: EngineSettings, key_type: Any, keys: list[Any]
    ) -> None:
        job = new_job(MapStateDescriptor("m", key_type, int), settings=engine_settings)
        job.do("k", *(("m.put", key, number) for number, key in enumerate(keys)))
        job.do("k", ("m.remove", keys[1]))
        got = job.do("k", *(("m.get", key) for key in keys))
        assert got == [None if n == 1 else n for n in range(len(keys))]
        stored = job.do("k", ("m.items",))[0]
        expected = [(key, n) for n, key in enumerate(keys) if n != 1]
        assert sorted(map(repr, stored)) == sorted(map(repr, expected))
