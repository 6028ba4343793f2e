"""Point states are read before the first record: those of all states at one time."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from types import SimpleNamespace
from typing import Any

import pytest

from forebay_engine.execution.declared_state import UnreadCells, read_ahead
from forebay_engine.execution.read_requests import READ_THREADS
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor
from forebay_state_api.contract.backend import TableSpec
from forebay_state_api.contract.changes import Space
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing.job import KeyedJob
from forebay_testing.reference import ReferenceBackend, ReferenceTable

STATES = 3


class Together(ReferenceBackend):
    """Answers a read when each of the states is being read."""

    reads = threading.Barrier(STATES, timeout=10)

    def table(self, spec: TableSpec) -> ReferenceTable:
        table = super().table(spec)

        def get_many(namespace: Any, keys: Sequence[tuple[int, Any]]) -> list[Any]:
            self.reads.wait()
            return ReferenceTable.get_many(table, namespace, keys)

        vars(table)["get_many"] = get_many
        return table


class Adds(KeyedProcessFunction[Any, Any, Any]):
    def open(self, context: Any) -> None:
        descriptors = [ValueStateDescriptor(f"s{n}", int, default=n) for n in range(STATES)]
        self.states = [context.get_state(one) for one in descriptors]

    def process_element(self, row: Any, ctx: Any) -> Any:
        for state in self.states:
            state.update(state.value() + 1)
        return [tuple(state.value() for state in self.states)]


def test_the_reads_of_all_states_are_under_way_together() -> None:
    job = KeyedJob(Together, MemoryStorage("memory://together"), key_type=str)
    assert job.run(Adds(), [("a",), ("b",)]) == [(1, 2, 3)] * 2
    assert job.run(Adds(), [("a",)]) == [(2, 3, 4)]


class Parts(Executor):
    """Makes each call at once, and keeps the number of batches of each."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def map(self, fn: Any, *parts: Iterable[Any], **options: Any) -> Any:
        assert not options
        (each,) = parts
        for part in each:
            self.batches.append(len(part))
            yield fn(part)


def states_with(cells: int, number: int, answered: dict[Any, Any]) -> list[Any]:
    """Return fake states of which each wants cells of its own."""

    def state_of(name: int) -> Any:
        state = SimpleNamespace(read_batch=lambda asked: [f"{key} of {name}" for _, key in asked])
        space = Space(namespace=None, complete=False, cells=answered.setdefault(name, {}))
        found = [UnreadCells(state, space, [(0, key) for key in range(cells)])]
        state.unread = lambda wanted, batch_size: found
        return state

    return [state_of(name) for name in range(number)]


@pytest.mark.parametrize(("cells", "most_calls"), [(1, 8 * READ_THREADS), (50, 800)])
def test_small_batches_of_many_states_share_a_call(cells: int, most_calls: int) -> None:
    answered: dict[Any, Any] = {}
    threads = Parts()
    requests: Any = SimpleNamespace(executor=lambda: threads)
    assert read_ahead(states_with(cells, 800, answered), {}, 100, requests) == 800 * cells
    assert answered == {
        state: {key: f"{key} of {state}" for key in range(cells)} for state in range(800)
    }
    assert READ_THREADS < len(threads.batches) <= most_calls
    assert max(threads.batches) * cells <= 100
