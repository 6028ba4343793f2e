"""Time to live in the state objects (docs/reference/state.md): all kinds, clean-up on read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from forebay_state_api.contract.changes import ABSENT
from forebay_state_api.job.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    SortedMapStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.job.ttl import (
    StateTtlConfig,
    UpdateType,
)
from forebay_testing.backends.kinds import add
from forebay_testing.backends.subject import SECOND, BackendSubject, Manner, Mean, NewJob
from forebay_testing.job import KeyedJob
from forebay_testing.scripts import Access

TTL = 10 * SECOND
WRITES: list[Access] = [
    ("v.update", 1),
    ("l.add_all", [1, 2]),
    ("m.put_all", {"a": 1, "b": 2}),
    ("r.add", 1),
    ("a.add", 1.0),
    ("s.put_all", {2: 2, 1: 1}),
]
READS: list[Access] = [
    ("v.value",),
    ("l.get",),
    ("m.items",),
    ("r.get",),
    ("a.get",),
    ("s.range",),
]
WRITTEN: list[Any] = [1, [1, 2], [("a", 1), ("b", 2)], 1, 1.0, [(1, 1), (2, 2)]]
DEFAULT = 7
EMPTY: list[Any] = [DEFAULT, [], [], None, None, []]


def states_with(ttl: StateTtlConfig | None) -> list[StateDescriptor]:
    """One state of each kind."""
    return [
        ValueStateDescriptor("v", int, default=DEFAULT, ttl=ttl),
        ListStateDescriptor("l", int, ttl=ttl),
        MapStateDescriptor("m", str, int, ttl=ttl),
        ReducingStateDescriptor("r", add, int, ttl=ttl),
        AggregatingStateDescriptor("a", Mean(), tuple[int, float], ttl=ttl),
        SortedMapStateDescriptor("s", int, int, ttl=ttl),
    ]


class TtlSubject(BackendSubject):
    """Six kinds with a time to live of ten seconds."""

    @pytest.fixture
    def with_ttl(self, new_job: NewJob, manner: Manner) -> Any:
        """Makes a job whose six states expire; keyword arguments go to `StateTtlConfig`."""

        def make(**config: Any) -> KeyedJob:
            states = states_with(StateTtlConfig(config.pop("ttl", TTL), **config))
            return new_job(*states, **manner._asdict())

        return make


class TtlTests(TtlSubject):
    """Cells are stored with their times, and renewed and removed by the engine."""

    def test_what_was_written_lives_until_its_time_is_over(self, with_ttl: Any) -> None:
        job: KeyedJob = with_ttl()
        job.do("k", *WRITES)
        job.clock.advance(TTL - timedelta(microseconds=1))
        assert job.do("k", *READS) == WRITTEN
        job.clock.advance(timedelta(microseconds=1))
        assert job.do("k", *READS) == EMPTY

    def test_times_are_kept_to_the_microsecond(self, with_ttl: Any) -> None:
        job: KeyedJob = with_ttl()
        job.clock.advance(timedelta(microseconds=123_457))
        written = job.clock.now_us
        job.do("k", *WRITES)
        job.restart()
        assert job.peek(job.descriptors[0], "k") == (written, 1)
        assert job.peek(job.descriptors[1], "k") == [(written, 1), (written, 2)]
        job.clock.advance(TTL - timedelta(microseconds=1))
        assert job.do("k", *READS) == WRITTEN
        job.clock.advance(timedelta(microseconds=1))
        assert job.do("k", *READS) == EMPTY

    def test_what_was_read_expired_is_removed(self, with_ttl: Any) -> None:
        job: KeyedJob = with_ttl()
        job.do("k", *WRITES)
        job.clock.advance(TTL)
        job.do("k", *READS)
        stored = [job.peek(descriptor, "k") for descriptor in job.descriptors]
        assert stored == [ABSENT, [], {}, ABSENT, ABSENT, {}]

    def test_without_clean_up_it_stays_stored_and_unseen(self, with_ttl: Any) -> None:
        job: KeyedJob = with_ttl(cleanup=())
        job.do("k", *WRITES)
        job.clock.advance(TTL)
        assert job.do("k", *READS) == EMPTY
        assert job.peek(job.descriptors[0], "k") == (job.clock.now_us - 10_000_000, 1)
        assert len(job.peek(job.descriptors[2], "k")) == 2
        assert job.do("k", ("m.is_empty",), ("m.contains", "a"), ("m.get", "a")) == [
            True,
            False,
            None,
        ]

    def test_reads_renew_only_if_asked_to(self, with_ttl: Any) -> None:
        job: KeyedJob = with_ttl(update_type=UpdateType.ON_READ_AND_WRITE)
        job.do("k", *WRITES)
        for _ in range(3):
            job.clock.advance(6 * SECOND)
            assert job.do("k", *READS) == WRITTEN
        job.clock.advance(TTL)
        assert job.do("k", *READS) == EMPTY

    def test_reading_an_entry_renews_that_entry(self, with_ttl: Any) -> None:
        job: KeyedJob = with_ttl(update_type=UpdateType.ON_READ_AND_WRITE)
        job.do("k", *WRITES)
        job.clock.advance(6 * SECOND)
        assert job.do("k", ("m.get", "a")) == [1]
        job.clock.advance(6 * SECOND)
        assert job.do("k", ("m.contains", "a"), ("m.contains", "b")) == [True, False]
        assert job.do("k", ("m.items",)) == [[("a", 1)]]

    def test_writes_renew(self, with_ttl: Any) -> None:
        job: KeyedJob = with_ttl()
        job.do("k", *WRITES)
        job.clock.advance(6 * SECOND)
        writes: list[Access] = [("v.update", 2), ("r.add", 2), ("a.add", 3.0)]
        job.do("k", *writes, ("l.add", 3), ("m.put", "a", 3), ("s.put", 2, 3))
        job.clock.advance(6 * SECOND)
        after = [2, [3], [("a", 3)], 3, 2.0, [(2, 3)]]
        assert job.do("k", *READS) == after, "elements expire one by one"

    def test_adding_to_what_has_expired_begins_anew(self, with_ttl: Any) -> None:
        job: KeyedJob = with_ttl()
        job.do("k", *WRITES)
        job.clock.advance(TTL)
        assert job.do("k", ("r.add", 5), ("r.get",), ("a.add", 5.0), ("a.get",)) == [
            None,
            5,
            None,
            5.0,
        ]
        assert job.do("k", ("l.add", 5), ("l.get",), ("m.put", "c", 5), ("m.items",)) == [
            None,
            [5],
            None,
            [("c", 5)],
        ]

    def test_namespaces_have_times_of_their_own(self, with_ttl: Any) -> None:
        job: KeyedJob = with_ttl()
        job.do("k", ("namespace", "old"), *WRITES)
        job.clock.advance(6 * SECOND)
        job.do("k", ("namespace", "new"), *WRITES)
        job.clock.advance(6 * SECOND)
        assert job.do("k", ("namespace", "old"), *READS, ("namespace", "new"), *READS) == [
            None,
            *EMPTY,
            None,
            *WRITTEN,
        ]

    def test_reading_a_list_renews_what_lives_and_keeps_the_rest_without_clean_up(
        self, with_ttl: Any
    ) -> None:
        job: KeyedJob = with_ttl(update_type=UpdateType.ON_READ_AND_WRITE, cleanup=())
        written = job.clock.now_us
        job.do("k", ("l.add", 1))
        job.clock.advance(6 * SECOND)
        job.do("k", ("l.add", 2))
        job.restart()
        job.clock.advance(6 * SECOND)
        now = job.clock.now_us
        assert job.do("k", ("l.get",), ("l.add", 3))[0] == [2]
        assert job.peek(job.descriptors[1], "k") == [(written, 1), (now, 2), (now, 3)]

    def test_a_restart_with_another_ttl(self, with_ttl: Any, new_job: NewJob) -> None:
        job: KeyedJob = with_ttl()
        job.do("k", *WRITES)
        job.descriptors = states_with(StateTtlConfig(30 * SECOND))
        job.restart()
        job.clock.advance(20 * SECOND)
        assert job.do("k", *READS) == WRITTEN
        job.descriptors = states_with(StateTtlConfig(5 * SECOND))
        job.restart()
        assert job.do("k", *READS) == EMPTY

    def test_a_restart_and_a_clock_set_back_change_no_time(self, with_ttl: Any) -> None:
        job: KeyedJob = with_ttl()
        job.do("k", *WRITES)
        job.clock.advance(6 * SECOND)
        job.restart()
        job.do("other", *WRITES)
        job.clock.advance(4 * SECOND)
        assert job.do("k", *READS) == EMPTY
        job.clock.advance(-TTL)
        assert job.do("k", *READS) == EMPTY, "what was cleaned up does not come back"
        assert job.do("other", *READS) == WRITTEN
