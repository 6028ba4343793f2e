"""Accesses that overlap (docs/reference/state.md, Order): several are made before one is awaited.

Per key they take effect in the order in which they are made, whatever is under way: a read, a
merge, or an addition whose cell has to be read first.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_state_api.contract.backend import StateBackend
from forebay_state_api.job.ttl import CleanupOnRead, StateTtlConfig, UpdateType
from forebay_testing.backends.machine import (
    ACCESSES_OF,
    NAMESPACE,
    StateModel,
    merges,
    overlapping,
    states_of_accesses,
)
from forebay_testing.backends.search import Search
from forebay_testing.backends.subject import (
    ENGINES,
    SECOND,
    BackendSubject,
    NewJob,
    NewStorage,
)
from forebay_testing.job import KeyedJob
from forebay_testing.late_reads import late_backend
from forebay_testing.scripts import AT_ONCE, LEFT, Access, Style

RENEWED: Final = StateTtlConfig(
    10 * SECOND, update_type=UpdateType.ON_READ_AND_WRITE, cleanup=(CleanupOnRead(),)
)
KEYS: Final = ("a", "a", "b")
"""Most records have the first one: they see what the ones before have left in memory."""
_MERGEABLE: Final = ("l", "r", "a")


def _batches(state: str) -> Any:
    """Draw micro-batches of records, with accesses of one state."""
    usual = ACCESSES_OF[state] | merges(state) if state in _MERGEABLE else ACCESSES_OF[state]
    of_state = overlapping(usual, ["", AT_ONCE, *[LEFT] * 4])
    accesses = st.integers(1, 8).flatmap(lambda n: NAMESPACE if n == 8 else of_state)
    records = st.tuples(st.sampled_from(KEYS), st.lists(accesses, min_size=3, max_size=8))
    return st.lists(st.lists(records, min_size=2, max_size=4), min_size=1, max_size=2)


Calls = list[tuple[str, list[Access]]]

_READ: Final[dict[str, Access]] = {
    "v": ("v.value",),
    "l": ("l.get",),
    "m": ("m.items",),
    "s": ("s.range",),
    "r": ("r.get",),
    "a": ("a.get",),
}
_IN: Final[dict[Any, Access]] = {name: ("namespace", name) for name in (None, "w1", "w2")}


@pytest.mark.filterwarnings("ignore:.*mixes asynchronous state accesses")
class OverlapTests(BackendSubject):
    """Each runs on the backend with answers that are late and out of order."""

    overlap_examples = 12

    @pytest.fixture(params=["waits", "late"])
    def overlapping_job(
        self, request: pytest.FixtureRequest, new_job: NewJob, backend_class: type[StateBackend]
    ) -> KeyedJob:
        """A job with states of all kinds, whose reads are answered late, or as the backend does."""
        job = new_job(*states_of_accesses(None), style=Style.OVERLAPPING, settings=ENGINES["tight"])
        if request.param == "late":
            job.backend_class = late_backend(backend_class, seed=1)
        return job

    @pytest.mark.parametrize("state", list(ACCESSES_OF))
    def test_overlapping_accesses_take_effect_in_their_order(
        self,
        backend_class: type[StateBackend],
        new_job: NewJob,
        new_storage: NewStorage,
        search: Search,
        state: str,
    ) -> None:
        @search.limits(self.overlap_examples if state == "l" else self.overlap_examples // 4)
        @search.seeded
        @given(
            batches=_batches(state),
            engine=st.sampled_from(sorted(ENGINES)),
            late=st.integers(0, 99),
        )
        def histories(batches: Any, engine: str, late: int) -> None:
            job = new_job(
                *states_of_accesses(None),
                storage=new_storage(),
                style=Style.OVERLAPPING,
                settings=ENGINES[engine],
            )
            job.backend_class = late_backend(backend_class, late)
            model = StateModel()
            for calls in batches:
                expected = [model.script(key, accesses) for key, accesses in calls]
                assert job.scripts(calls) == expected
                job.restart()
            reads = [one for name in _IN.values() for one in (name, _READ[state])]
            calls = [(key, reads) for key in KEYS]
            assert job.scripts(calls) == [model.script(*call) for call in calls]

        histories()

    def test_a_list_is_written_while_it_is_merged_into(self, overlapping_job: KeyedJob) -> None:
        merge = ("~l.merge_namespaces", None, ["w1"])
        calls: Calls = [("k", [merge, ("~l.add", 18), ("l.get",)]), ("k", [("=l.get",)])]
        assert overlapping_job.scripts(calls) == [[None, None, [18]], [[18]]]
        overlapping_job.restart()
        assert overlapping_job.do("k", ("l.get",)) == [[18]]

    def test_a_list_is_written_while_it_is_moved_away(self, overlapping_job: KeyedJob) -> None:
        overlapping_job.do("k", ("l.add_all", [1, 2]))
        overlapping_job.restart()
        moves = [("~l.merge_namespaces", name, [None]) for name in ("w1", "w2")]
        calls: Calls = [
            ("k", [*moves, ("~l.add", 3)]),
            ("k", [("~l.merge_namespaces", "w2", ["w1", None]), ("=l.add", 4)]),
            ("k", [("l.get",), _IN["w1"], ("l.get",), _IN["w2"], ("l.get",)]),
        ]
        assert overlapping_job.scripts(calls)[2] == [[4], None, [], None, [1, 2, 3]]

    @pytest.mark.parametrize("state", ["r", "a"])
    def test_an_addition_comes_between_two_merges(
        self, overlapping_job: KeyedJob, state: str
    ) -> None:
        accesses = [
            (f"~{state}.merge_namespaces", None, ["w2"]),
            (f"~{state}.add", 5),
            (f"~{state}.merge_namespaces", "w1", [None, "w1"]),
        ]
        overlapping_job.do("k", *accesses)
        reads = [(f"{state}.get",), _IN["w1"], (f"{state}.get",)]
        assert overlapping_job.do("k", *reads) == [None, None, 5]

    def test_what_is_read_before_a_merge_is_renewed_and_moved(
        self, new_job: NewJob, backend_class: type[StateBackend]
    ) -> None:
        job = new_job(
            *states_of_accesses(RENEWED), style=Style.OVERLAPPING, settings=ENGINES["tight"]
        )
        job.do("k", ("l.add", 1))
        for late in range(4):
            job.backend_class = late_backend(backend_class, late)
            job.clock.advance(6 * SECOND)
            job.restart()
            one, other = ("w1", None) if late % 2 else (None, "w1")
            moves = [_IN[one], ("~l.get",), ("~l.merge_namespaces", other, [one, "w2"])]
            assert job.do("k", *moves, ("~l.add", 2), ("~l.clear",))[1] == [1]
        job.restart()
        assert job.do("k", ("l.get",), _IN["w1"], ("l.get",)) == [[1], None, []]
