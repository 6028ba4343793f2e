"""Overlapping accesses of the kit, which find an engine that acts out of turn."""

from __future__ import annotations

import pytest
from hypothesis import Phase

from forebay_engine.states.list import KeyedListState
from forebay_engine.states.mergeable import MergeableState
from forebay_testing import KeyedJob
from forebay_testing.backends.overlapping import OverlapTests
from forebay_testing.backends.search import Search
from forebay_testing.reference import ReferenceBackend

from ..subjects import OnReference

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore:.*mixes asynchronous state accesses"),
]


class TestOverlaps(OnReference, OverlapTests):
    overlap_examples = 40


class FirstFound(Search):
    """The first example that fails is enough: it need not become smaller."""

    def limits(self, examples, **more):
        return super().limits(examples, phases=[Phase.generate], **more)


def search():
    def new_job(*descriptors, storage, **more):
        return KeyedJob(ReferenceBackend, storage, descriptors=descriptors, **more)

    TestOverlaps().test_overlapping_accesses_take_effect_in_their_order(
        ReferenceBackend, new_job, FirstFound(None), "l"
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
