"""Point states are read before the first record: those of all states at one time."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor
from forebay_state_api.contract.backend import TableSpec
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
