"""Accesses to states with a time to live: what they show, keep and log."""

from __future__ import annotations

import logging
from datetime import timedelta

import pytest

from forebay_state_api.contract.changes import ABSENT
from forebay_state_api.job.ttl import StateVisibility, UpdateType
from forebay_testing.backends.subject import MANNERS, SECOND
from forebay_testing.backends.ttl import DEFAULT, EMPTY, READS, TTL, WRITES, WRITTEN, TtlSubject

from ..subjects import OnHeap, OnReference


@pytest.mark.filterwarnings("ignore:operator .* mixes asynchronous:RuntimeWarning")
class TtlOfAccesses(TtlSubject):
    def test_what_was_dropped_is_logged(self, with_ttl, caplog):
        job = with_ttl()
        job.do("k", *WRITES)
        job.clock.advance(TTL)
        with caplog.at_level(logging.DEBUG, logger="forebay_engine"):
            job.do("k", *READS)
        for name in "vlmras":
            assert f"'{name}'" in caplog.text

    def test_an_expired_value_may_be_handed_out_once(self, with_ttl):
        job = with_ttl(visibility=StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP)
        job.do("k", *WRITES)
        job.clock.advance(TTL)
        for read, written, empty in zip(READS, WRITTEN, EMPTY, strict=True):
            once, again = job.do("k", read, read)
            assert once in (written, empty)
            assert again == empty
        assert job.do("k", *READS) == EMPTY

    @pytest.mark.parametrize("visibility", list(StateVisibility))
    def test_what_was_cleared_is_empty_at_once(self, with_ttl, visibility):
        job = with_ttl(visibility=visibility)
        job.do("k", *WRITES)
        clears = [
            ("v.update", None),
            ("l.update", []),
            ("m.clear",),
            ("r.clear",),
            ("a.clear",),
            ("s.clear",),
        ]
        assert job.do("k", *clears, *READS)[len(clears) :] == EMPTY
        assert job.do("k", *READS) == EMPTY

    @pytest.mark.parametrize("update_type", list(UpdateType))
    @pytest.mark.parametrize(
        "accesses",
        [
            [("l.get",), ("l.add", 9)],
            [("l.add", 9), ("l.get",)],
            [("l.get",), ("l.get",), ("l.add", 9), ("l.get",)],
            [("m.items",), ("l.add", 9), ("l.get",), ("l.add_all", []), ("l.get",)],
        ],
        ids=["read, add", "add, read", "read twice, add, read", "add, read twice"],
    )
    def test_an_expired_list_that_is_read_and_added_to_is_stored_alike_in_all_styles(
        self, with_ttl, update_type, accesses
    ):
        job = with_ttl(update_type=update_type, cleanup=())
        written = job.clock.now_us
        job.do("k", ("l.update", [3, 1]))
        job.restart()
        job.clock.advance(TTL)
        job.do("k", *accesses)
        stored = [(written, 3), (written, 1), (job.clock.now_us, 9)]
        assert job.peek(job.descriptors[1], "k") == stored, "without clean-up nothing goes"
        assert job.do("k", ("l.get",)) == [[9]]

    def test_a_value_that_is_unset_or_has_expired_reads_as_the_default(self, with_ttl):
        job = with_ttl()
        assert job.do("k", ("v.value",)) == [DEFAULT]
        assert job.peek(job.descriptors[0], "k") is ABSENT, "a default is not stored"
        job.do("k", ("v.update", 1))
        job.clock.advance(TTL)
        assert job.do("k", ("v.value",), ("v.update", 2), ("v.clear",), ("v.value",))[::3] == [
            DEFAULT,
            DEFAULT,
        ]

    def test_a_read_and_a_write_of_one_record(self, with_ttl):
        job = with_ttl(update_type=UpdateType.ON_READ_AND_WRITE)
        job.do("k", *WRITES)
        job.clock.advance(SECOND)
        writes = [("v.update", 2), ("l.add", 3), ("m.remove", "a")]
        results = job.do("k", *READS, *writes, ("s.remove_range", 2), *READS)
        assert results[: len(READS)] == WRITTEN
        after = results[-len(READS) :]
        assert after == [2, [1, 2, 3], [("b", 2)], 1, 1.0, [(1, 1)]]
        job.clock.advance(TTL - SECOND)
        assert job.do("k", *READS) == after

    def test_a_huge_ttl_never_overflows(self, with_ttl):
        job = with_ttl(ttl=timedelta.max)
        job.do("k", *WRITES)
        job.clock.advance(timedelta(days=365_000))
        assert job.do("k", *READS) == WRITTEN

    def test_merging_namespaces_leaves_out_what_has_expired(self, with_ttl):
        job = with_ttl()
        job.do("k", ("namespace", "old"), *WRITES)
        job.clock.advance(6 * SECOND)
        job.do("k", ("namespace", "new"), *WRITES)
        job.clock.advance(6 * SECOND)
        merges = [(f"{name}.merge_namespaces", "new", ["old"]) for name in "rla"]
        job.do("k", *merges)
        reads = [("r.get",), ("l.get",), ("a.get",)]
        assert job.do("k", ("namespace", "new"), *reads) == [None, 1, [1, 2], 1.0]

    @pytest.mark.parametrize(
        "sources", [[], ["absent"], ["target"], ["expired", "absent"]], ids=str
    )
    def test_merging_nothing_changes_nothing(self, with_ttl, sources):
        job = with_ttl(cleanup=())
        for namespace in ("target", "expired"):
            job.do("k", ("namespace", namespace), *WRITES)
        job.clock.advance(6 * SECOND)
        job.do("k", ("namespace", "target"), *WRITES)
        before = [job.peek(state, "k", "target") for state in job.descriptors]
        job.restart()
        job.clock.advance(6 * SECOND)
        job.do("k", *((f"{name}.merge_namespaces", "target", sources) for name in "rla"))
        assert [job.peek(state, "k", "target") for state in job.descriptors] == before
        job.clock.advance(4 * SECOND)
        reads = [("r.get",), ("l.get",), ("a.get",)]
        assert job.do("k", ("namespace", "target"), *reads) == [None, None, [], None]

    def test_merging_something_renews_the_target(self, with_ttl):
        job = with_ttl()
        job.do("k", ("namespace", "target"), *WRITES)
        job.clock.advance(6 * SECOND)
        job.do("k", ("namespace", "source"), *WRITES)
        job.do("k", *((f"{name}.merge_namespaces", "target", ["source"]) for name in "rla"))
        job.clock.advance(6 * SECOND)
        reads = [("r.get",), ("l.get",), ("a.get",)]
        assert job.do("k", ("namespace", "target"), *reads) == [None, 2, [1, 2], 1.0]


class TestOnHeap(OnHeap, TtlOfAccesses):
    """Synchronous, and with coroutines that wait for their turn."""


class TestOnReference(OnReference, TtlOfAccesses):
    """With callbacks."""

    @pytest.fixture(params=["callback", "unchained"])
    def manner(self, request):
        return MANNERS[request.param]
