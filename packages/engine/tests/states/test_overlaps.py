"""Overlapping accesses of the kit, which find an engine that acts out of turn."""

from __future__ import annotations

import pytest
from hypothesis import Phase

from forebay_engine.states.list import KeyedListState
from forebay_engine.states.mergeable import MergeableState
from forebay_state_api.job.ttl import StateTtlConfig, StateVisibility
from forebay_testing import KeyedJob
from forebay_testing.backends.machine import states_of_accesses
from forebay_testing.backends.overlapping import OverlapTests
from forebay_testing.backends.search import Search
from forebay_testing.backends.subject import ENGINES, SECOND, memory_storage
from forebay_testing.late_reads import late_backend
from forebay_testing.reference import ReferenceBackend
from forebay_testing.scripts import Style

from ..subjects import OnReference

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:.*mixes asynchronous state accesses"),
]


SHOWN = StateTtlConfig(10 * SECOND, visibility=StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP)


class TestOverlaps(OnReference, OverlapTests):
    overlap_examples = 40

    @pytest.mark.parametrize(
        ("accesses", "results"),
        [
            ([("~v.value",), ("=v.value",)], [1, None]),
            ([("~v.value",), ("~v.update", 2), ("v.value",)], [1, None, 2]),
            ([("~l.get",), ("~l.add", 2), ("=l.get",)], [[1], None, [2]]),
            ([("~m.get", "x"), ("~m.items",), ("m.get", "y")], [1, [("y", 2)], None]),
            ([("~m.items",), ("~m.clear",), ("~m.is_empty",)], [[("x", 1), ("y", 2)], None, True]),
            ([("~s.first",), ("=s.last",), ("~s.range",)], [(1, 1), (2, 2), []]),
            ([("~s.last",), ("~s.put", 2, 3), ("~s.range",)], [(2, 2), None, [(1, 1), (2, 3)]]),
            ([("~r.get",), ("=r.get",)], [1, None]),
        ],
    )
    def test_what_has_expired_is_shown_once_by_the_first_read(
        self, new_job, backend_class, accesses, results
    ):
        for late in range(3):
            job = new_job(
                *states_of_accesses(SHOWN),
                storage=memory_storage(),
                style=Style.OVERLAPPING,
                settings=ENGINES["tight"],
            )
            job.backend_class = late_backend(backend_class, late)
            entries = [("m.put_all", {"x": 1, "y": 2}), ("s.put", 1, 1), ("s.put", 2, 2)]
            job.do("k", ("v.update", 1), ("l.add", 1), ("r.add", 1), *entries)
            job.clock.advance(11 * SECOND)
            job.restart()
            assert job.do("k", *accesses) == results


class FirstFound(Search):
    """The first example that fails is enough: it need not become smaller."""

    def limits(self, examples, **more):
        return super().limits(examples, phases=[Phase.generate], **more)


def search():
    def new_job(*descriptors, storage, **more):
        return KeyedJob(ReferenceBackend, storage, descriptors=descriptors, **more)

    TestOverlaps().test_overlapping_accesses_take_effect_in_their_order(
        ReferenceBackend, new_job, memory_storage, FirstFound(None), "l"
    )


def test_an_answer_that_replaces_a_write_is_found(monkeypatch):
    def put_over(cells, dirty, key, stored):
        return cells.setdefault(key, stored)

    monkeypatch.setattr(KeyedListState, "_put_under", staticmethod(put_over))
    monkeypatch.setattr(KeyedListState, "_read_by_merge", MergeableState._read_by_merge)
    with pytest.raises(AssertionError):
        search()


def test_a_write_that_does_not_wait_for_a_merge_is_found(monkeypatch):
    monkeypatch.setattr(MergeableState, "_defer_write", lambda *_: False)
    with pytest.raises(AssertionError):
        search()
