"""A hypothesis state machine: any history of batches, crashes and restarts, against a plain model.

The model is a dictionary per key; a commit copies it. Whatever the order of accesses, whichever
style they are written in, wherever a run dies or how it comes back, a state reads as the model.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from forebay_state_api.job.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    SortedMapStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.job.ttl import StateTtlConfig
from forebay_state_api.settings import EngineSettings
from forebay_testing.backends.kinds import add
from forebay_testing.backends.search import Search
from forebay_testing.backends.subject import BackendSubject, Mean, NewJob, NewStorage
from forebay_testing.job import KeyedJob
from forebay_testing.late_reads import late_backend
from forebay_testing.scripts import WAYS, Access, Style

KEYS: Final = ["a", "b", "c", "d", "e"]
_NUMBERS: Final = st.integers(-3, 3)
_BOUNDS: Final = st.none() | st.integers(-4, 4)
_ENTRIES: Final = st.sampled_from(["x", "y", "z"])

NAMESPACE: Final = st.tuples(st.just("namespace"), st.sampled_from([None, "w1", "w2"]))


def overlapping(accesses: Any, ways: Sequence[str] = ("", *WAYS)) -> Any:
    """Draw accesses with a way for each, which `Style.OVERLAPPING` uses."""
    return st.builds(
        lambda way, access: (way + access[0], *access[1:]), st.sampled_from(ways), accesses
    )


def merges(state: str) -> Any:
    """Draw merges of a state's namespaces."""
    return st.tuples(
        st.just(f"{state}.merge_namespaces"),
        st.sampled_from([None, "w1"]),
        st.lists(st.sampled_from([None, "w1", "w2"]), min_size=1, max_size=2),
    )


ACCESSES_OF: Final = {
    "v": st.sampled_from([("v.value",), ("v.clear",)])
    | st.tuples(st.just("v.update"), st.none() | _NUMBERS),
    "l": st.sampled_from([("l.get",), ("l.clear",)])
    | st.tuples(st.just("l.add"), _NUMBERS)
    | st.tuples(st.sampled_from(["l.add_all", "l.update"]), st.lists(_NUMBERS, max_size=3))
    | merges("l"),
    "m": st.sampled_from([("m.items",), ("m.keys",), ("m.values",), ("m.is_empty",), ("m.clear",)])
    | st.tuples(st.sampled_from(["m.get", "m.contains", "m.remove"]), _ENTRIES)
    | st.tuples(st.just("m.put"), _ENTRIES, st.none() | _NUMBERS)
    | st.tuples(st.just("m.put_all"), st.dictionaries(_ENTRIES, _NUMBERS, max_size=2)),
    "s": st.sampled_from([("s.range",), ("s.first",), ("s.last",), ("s.clear",)])
    | st.tuples(
        st.sampled_from(["s.range", "s.first", "s.last", "s.remove_range"]), _BOUNDS, _BOUNDS
    )
    | st.tuples(st.sampled_from(["s.get", "s.remove"]), _NUMBERS)
    | st.tuples(st.just("s.put"), _NUMBERS, _NUMBERS),
    "r": st.sampled_from([("r.get",), ("r.clear",)])
    | st.tuples(st.just("r.add"), _NUMBERS)
    | merges("r"),
    "a": st.sampled_from([("a.get",), ("a.clear",)])
    | st.tuples(st.just("a.add"), _NUMBERS.map(float))
    | merges("a"),
}
"""State → its accesses."""
ACCESSES: Final = NAMESPACE | overlapping(st.one_of(*ACCESSES_OF.values()))


def states_of_accesses(ttl: StateTtlConfig | None) -> list[StateDescriptor]:
    """The states that `ACCESSES` use, one of each kind."""
    return [
        ValueStateDescriptor("v", int, ttl=ttl),
        ListStateDescriptor("l", int, ttl=ttl),
        MapStateDescriptor("m", str, int | None, ttl=ttl),
        SortedMapStateDescriptor("s", int, int, ttl=ttl),
        ReducingStateDescriptor("r", add, int, ttl=ttl),
        AggregatingStateDescriptor("a", Mean(), tuple[int, float], ttl=ttl),
    ]


CALLS: Final = st.lists(
    st.tuples(st.sampled_from(KEYS), st.lists(ACCESSES, max_size=8)), min_size=1, max_size=6
)
ENGINES: Final = st.builds(
    EngineSettings,
    read_ahead=st.booleans(),
    in_flight_limit=st.sampled_from([1, 3, 6000]),
    batch_size=st.sampled_from([1, 3, 1000]),
    page_size=st.sampled_from([1, 2, 128]),
    drain_timeout_s=st.just(5.0),
)


LATE: Final = st.none() | st.integers(0, 99)
"""The seed of a backend that answers late and out of order, or ``None`` for the plain one."""


class StateModel:
    """The expected contents of the states: ``cells[namespace, key, state]``."""

    def __init__(self) -> None:
        self.cells: dict[tuple[Any, str, str], Any] = {}

    def script(self, key: str, accesses: Sequence[Access]) -> list[Any]:
        """Carry out a script and return its results."""
        namespace: Any = None
        results: list[Any] = []
        for name, *arguments in accesses:
            if name == "namespace":
                namespace = arguments[0]
                results.append(None)
                continue
            state, method = name.lstrip("".join(WAYS)).split(".")
            results.append(getattr(self, f"{state}_{method}")((namespace, key, state), *arguments))
        return results

    # -- value --------------------------------------------------------------------------------

    def v_value(self, cell: Any) -> Any:
        return self.cells.get(cell)

    def v_update(self, cell: Any, value: Any) -> None:
        self._set(cell, value)

    def v_clear(self, cell: Any) -> None:
        self.cells.pop(cell, None)

    l_clear = m_clear = s_clear = r_clear = a_clear = v_clear

    # -- list ---------------------------------------------------------------------------------

    def l_get(self, cell: Any) -> Any:
        return list(self.cells.get(cell, []))

    def l_add(self, cell: Any, value: Any) -> None:
        self.l_add_all(cell, [value])

    def l_add_all(self, cell: Any, values: Any) -> None:
        self._set(cell, [*self.cells.get(cell, []), *values] or None)

    def l_update(self, cell: Any, values: Any) -> None:
        self._set(cell, list(values) or None)

    def l_merge_namespaces(self, cell: Any, target: Any, sources: Any) -> None:
        for source in sources:
            if source != target:
                moved = self.cells.pop((source, *cell[1:]), [])
                self.l_add_all((target, *cell[1:]), moved)

    # -- map ----------------------------------------------------------------------------------

    def m_items(self, cell: Any) -> Any:
        return sorted(self.cells.get(cell, {}).items(), key=repr)

    def m_keys(self, cell: Any) -> Any:
        return sorted(self.cells.get(cell, {}), key=repr)

    def m_values(self, cell: Any) -> Any:
        return sorted(self.cells.get(cell, {}).values(), key=repr)

    def m_is_empty(self, cell: Any) -> Any:
        return not self.cells.get(cell)

    def m_get(self, cell: Any, entry: Any) -> Any:
        return self.cells.get(cell, {}).get(entry)

    def m_contains(self, cell: Any, entry: Any) -> Any:
        return entry in self.cells.get(cell, {})

    def m_put(self, cell: Any, entry: Any, value: Any) -> None:
        self.m_put_all(cell, {entry: value})

    def m_put_all(self, cell: Any, entries: Any) -> None:
        self._set(cell, {**self.cells.get(cell, {}), **entries} or None)

    def m_remove(self, cell: Any, entry: Any) -> None:
        left = {k: v for k, v in self.cells.get(cell, {}).items() if k != entry}
        self._set(cell, left or None)

    # -- sorted map ---------------------------------------------------------------------------

    def s_range(self, cell: Any, start: Any = None, stop: Any = None) -> Any:
        entries = sorted(self.cells.get(cell, {}).items())
        return [
            (key, value)
            for key, value in entries
            if (start is None or start <= key) and (stop is None or key < stop)
        ]

    def s_first(self, cell: Any, start: Any = None, stop: Any = None) -> Any:
        return next(iter(self.s_range(cell, start, stop)), None)

    def s_last(self, cell: Any, start: Any = None, stop: Any = None) -> Any:
        return next(iter(self.s_range(cell, start, stop)[::-1]), None)

    def s_remove_range(self, cell: Any, start: Any = None, stop: Any = None) -> None:
        for key, _ in self.s_range(cell, start, stop):
            self.m_remove(cell, key)

    s_get, s_put, s_remove = m_get, m_put, m_remove

    # -- reducing and aggregating -------------------------------------------------------------

    def r_get(self, cell: Any) -> Any:
        return self.cells.get(cell)

    def r_add(self, cell: Any, value: Any) -> None:
        self._set(cell, self.cells.get(cell, 0) + value)

    def a_get(self, cell: Any) -> Any:
        held = self.cells.get(cell)
        return None if held is None else held[1] / held[0]

    def a_add(self, cell: Any, value: Any) -> None:
        count, total = self.cells.get(cell, (0, 0.0))
        self._set(cell, (count + 1, total + value))

    def r_merge_namespaces(self, cell: Any, target: Any, sources: Any) -> None:
        self._merge(cell, target, sources, lambda first, second: first + second)

    def a_merge_namespaces(self, cell: Any, target: Any, sources: Any) -> None:
        self._merge(cell, target, sources, lambda a, b: (a[0] + b[0], a[1] + b[1]))

    def _merge(self, cell: Any, target: Any, sources: Any, both: Any) -> None:
        for source in sources:
            held = self.cells.pop((source, *cell[1:]), None) if source != target else None
            if held is not None:
                before = self.cells.get((target, *cell[1:]))
                self._set((target, *cell[1:]), held if before is None else both(before, held))

    def _set(self, cell: Any, content: Any) -> None:
        if content is None:
            self.cells.pop(cell, None)
        else:
            self.cells[cell] = content


class StateMachineTests(BackendSubject):
    """Any order of accesses, commits, crashes, restarts and replays, against a plain model."""

    machine_examples = 15
    machine_steps = 12

    @pytest.fixture
    def new_machine(
        self, new_job: NewJob, forget: Callable[[], None], new_storage: NewStorage
    ) -> Any:
        """Make a state machine of the subject."""
        return lambda: BatchMachine(new_job, forget, new_storage)

    # Some accesses are synchronous, and some end a merge that is under way.
    @pytest.mark.filterwarnings("ignore:.*mixes asynchronous state accesses")
    def test_any_history_reads_as_the_model(self, new_machine: Any, search: Search) -> None:
        limits = search.limits(self.machine_examples, stateful_step_count=self.machine_steps)
        run_state_machine_as_test(search.seeded(new_machine), settings=limits)


class BatchMachine(RuleBasedStateMachine):
    """Micro-batches of one operator, and the events between them."""

    def __init__(
        self, new_job: NewJob, forget: Callable[[], None], new_storage: NewStorage
    ) -> None:
        super().__init__()
        self._new_storage = new_storage
        self._new_job = new_job
        self._forget = forget
        self._committed = [StateModel()]
        """The contents of each version; the index is the version."""
        self._since = 0
        """The batch at which the run began."""

    @initialize(parallelism=st.integers(1, 4), late=LATE)
    def begin(self, parallelism: int, late: int | None) -> None:
        """An empty state directory."""
        self._job: KeyedJob = self._new_job(
            *states_of_accesses(None),
            storage=self._new_storage(),
            parallelism=parallelism,
        )
        if late is not None:
            self._job.backend_class = late_backend(self._job.backend_class, late)

    @rule(calls=CALLS, style=st.sampled_from(Style), engine=ENGINES)
    def batch(self, calls: Any, style: Style, engine: EngineSettings) -> None:
        """Run a micro-batch that is committed."""
        self._committed.append(self._check(calls, style, engine, crash=False))

    @rule(calls=CALLS, style=st.sampled_from(Style), engine=ENGINES)
    def batch_that_dies(self, calls: Any, style: Style, engine: EngineSettings) -> None:
        """Run a micro-batch to its end, and do not commit it."""
        self._check(calls, style, engine, crash=True)

    @rule(parallelism=st.integers(1, 8), same_process=st.booleans())
    def restart(self, parallelism: int, *, same_process: bool) -> None:
        """Start a new run, in this process or in a fresh one, with another parallelism."""
        self._job.restart(parallelism=parallelism, same_process=same_process)
        self._since = self._job.batch_id

    @rule()
    def fresh_process(self) -> None:
        """Replace the worker process within a run."""
        self._forget()

    @rule(data=st.data(), same_process=st.booleans())
    def go_back(self, data: Any, *, same_process: bool) -> None:
        """Start a new run at an older batch."""
        batch_id = data.draw(st.integers(0, self._job.batch_id))
        self._job.restart(batch_id=batch_id, same_process=same_process)
        self._since = batch_id
        del self._committed[batch_id + 1 :]

    @rule()
    def last_batch_again(self) -> None:
        """Repeat a batch that the run has committed."""
        if self._job.batch_id > self._since:
            self._job.batch_id -= 1
            del self._committed[-1]

    def _check(
        self, calls: Any, style: Style, engine: EngineSettings, *, crash: bool
    ) -> StateModel:
        model = copy.deepcopy(self._committed[-1])
        expected = [model.script(key, accesses) for key, accesses in calls]
        self._job.style, self._job.settings = style, engine
        assert self._job.scripts(calls, crash=crash) == expected
        return model
