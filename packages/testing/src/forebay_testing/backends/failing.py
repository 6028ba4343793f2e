"""Records that fail alone (``on_error="column"``) leave nothing behind."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_engine.execution import engine as engine_module
from forebay_engine.isolation.failed_record import ErrorRows, FailedRecord
from forebay_state_api.contract.backend import StateBackend
from forebay_state_api.job.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    SortedMapStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.job.ttl import CleanupOnRead, StateTtlConfig, UpdateType
from forebay_testing.backends.kinds import add
from forebay_testing.backends.machine import LATE, overlapping
from forebay_testing.backends.search import Search
from forebay_testing.backends.subject import (
    ENGINES,
    SECOND,
    BackendSubject,
    Manner,
    Mean,
    NewJob,
    NewStorage,
)
from forebay_testing.late_reads import late_backend
from forebay_testing.scripts import Script, Style, script_function

UNLIMITED: Final = ErrorRows(limit=1_000_000)
RENEWED: Final = StateTtlConfig(
    timedelta(seconds=10),
    update_type=UpdateType.ON_READ_AND_WRITE,
    cleanup=(CleanupOnRead(),),
)


def _every_kind(ttl: StateTtlConfig | None, suffix: str) -> tuple[StateDescriptor, ...]:
    return (
        ValueStateDescriptor(f"v{suffix}", int, ttl=ttl),
        ListStateDescriptor(f"l{suffix}", int, ttl=ttl),
        MapStateDescriptor(f"m{suffix}", int, int, ttl=ttl),
        SortedMapStateDescriptor(f"s{suffix}", int, int, ttl=ttl),
        ReducingStateDescriptor(f"r{suffix}", add, int, ttl=ttl),
        AggregatingStateDescriptor(f"a{suffix}", Mean(), tuple[int, float], ttl=ttl),
    )


DESCRIPTORS: Final = (*_every_kind(None, ""), *_every_kind(RENEWED, "t"))

KEYS: Final = ("x", "y")
NAMESPACES: Final = (None, "a", "b")
_NUMBERS: Final = st.integers(0, 3)


def _of(names: Sequence[str], *arguments: Any) -> Any:
    return st.tuples(st.sampled_from(names), *arguments)


_OF_STATES: Final = st.one_of(
    *(
        strategy
        for suffix in ("", "t")
        for strategy in (
            _of([f"v{suffix}.update", f"l{suffix}.add", f"r{suffix}.add"], _NUMBERS),
            _of([f"m{suffix}.put", f"s{suffix}.put"], _NUMBERS, _NUMBERS),
            _of(
                [f"{kind}{suffix}.{call}" for kind in "ms" for call in ("remove", "get")], _NUMBERS
            ),
            _of(
                [f"s{suffix}.range", f"s{suffix}.last", f"s{suffix}.remove_range"],
                _NUMBERS,
                _NUMBERS,
            ),
            _of([f"a{suffix}.add"], _NUMBERS.map(float)),
            _of([f"l{suffix}.update"], st.lists(_NUMBERS, max_size=3)),
            _of([f"v{suffix}.value", f"m{suffix}.items"]),
            _of([f"{kind}{suffix}.get" for kind in "lra"]),
            _of([f"{kind}{suffix}.clear" for kind in "vlmsra"]),
            _of(
                [f"{kind}{suffix}.merge_namespaces" for kind in "lra"],
                st.sampled_from(NAMESPACES),
                st.lists(st.sampled_from(NAMESPACES), max_size=2),
            ),
        )
    )
)
_ACCESSES: Final = overlapping(_OF_STATES) | _of(["namespace"], st.sampled_from(NAMESPACES))
_SCRIPTS: Final = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(KEYS),
            st.lists(_ACCESSES, min_size=1, max_size=6),
            st.booleans(),
        ),
        min_size=1,
        max_size=5,
    ),
    min_size=1,
    max_size=3,
)


class FailureTests(BackendSubject):
    """Each compares with what happens, or is stored, without the failed records."""

    failure_examples = 20

    @pytest.mark.filterwarnings("ignore:.*(mixes asynchronous|were never awaited)")
    def test_scripts_that_fail_change_no_kind_of_state(
        self,
        backend_class: type[StateBackend],
        new_job: NewJob,
        new_storage: NewStorage,
        search: Search,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(engine_module, "SPILL_CELLS", -1)

        @search.limits(self.failure_examples)
        @search.seeded
        @given(
            batches=_SCRIPTS,
            style=st.sampled_from(Style),
            engine=st.sampled_from(sorted(ENGINES)),
            late=LATE,
        )
        def histories(batches: Any, style: Style, engine: str, late: int | None) -> None:
            limits = ENGINES[engine]
            kinds = {"settings": limits, "style": style}
            failing, sound = (
                new_job(*DESCRIPTORS, storage=new_storage(), **kinds, error_rows=rows)
                for rows in (UNLIMITED, None)
            )
            if late is not None:
                failing.backend_class = late_backend(backend_class, late)
            for batch in batches:
                calls = [
                    Script(key, number, [*accesses, ("fail",)] if bad else accesses)
                    for number, (key, accesses, bad) in enumerate(batch)
                ]
                good = [call for call in calls if ("fail",) not in call.accesses]
                function = script_function(style, DESCRIPTORS)
                out = failing.run(function, calls)
                results = [row for row in out if not isinstance(row, FailedRecord)]
                assert sorted(results, key=repr) == sorted(sound.run(function, good), key=repr)
                assert len(out) == len(calls)
                for job in (failing, sound):
                    job.clock.advance(4 * SECOND)
                    job.restart()
            for namespace in NAMESPACES:
                found, wanted = (job.peek_all(KEYS, namespace) for job in (failing, sound))
                assert found == wanted

        histories()

    def test_a_failed_record_takes_back_what_it_wrote(
        self, new_job: NewJob, manner: Manner
    ) -> None:
        style, settings = manner
        job = new_job(*DESCRIPTORS, style=style, settings=settings, error_rows=UNLIMITED)
        puts = [("v.update", 1), ("l.add", 1), ("m.put", 1, 1), ("r.add", 1), ("a.add", 1.0)]
        later = [("v.update", 2), ("l.add", 2), ("m.remove", 1), ("r.add", 2), ("a.clear",)]
        rows = [
            Script("k", 0, puts),
            Script("k", 1, [*later, ("fail",)]),
            Script("k", 2, [("l.add", 3)]),
            Script("new", 3, [*puts, ("fail",)]),
        ]
        first, failed, last, _ = job.run(script_function(style, DESCRIPTORS), rows)
        assert (first[0], last[0]) == (0, 2)
        assert (failed.type, failed.key, failed.method) == ("ScriptFailed", "k", "process_element")
        reads = (("v.value",), ("l.get",), ("m.items",), ("r.get",), ("a.get",))
        found = job.scripts([("k", reads), ("new", reads)])
        assert found == [[1, [1, 3], [(1, 1)], 1, 1.0], [None, [], [], None, None]]
