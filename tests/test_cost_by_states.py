"""The work of a micro-batch grows with the number of states, not with its square."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import pytest

from forebay_state_api import (
    KeyedProcessFunction,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.plugins import plugins
from forebay_state_api.storage.opening import open_storage
from forebay_state_api.testing.job import KeyedJob
from forebay_state_api.testing.reference import ReferenceBackend

pytestmark = pytest.mark.long

STATES = 4
BYTES_SPILLED = 60
"""For each state, so that a micro-batch spills as often with any number of them."""
ROWS = [("ann",), ("bob",)]
MEASURES = ("forebay_state_api/metrics/", "forebay_state_api/versions/figures.py")
"""Modules whose work depends on how long things take, and on how many digits figures have."""

Work = Counter[CodeType]


class Many(KeyedProcessFunction[Any, Any, Any]):
    """Reads and writes as many states of each kind as it is given."""

    def __init__(self, number: int) -> None:
        self.names = [str(n) for n in range(number)]

    def open(self, context: Any) -> None:
        value, map_of = ValueStateDescriptor, MapStateDescriptor
        self.values = [context.get_state(value(f"v{n}", int, default=0)) for n in self.names]
        self.maps = [context.get_map_state(map_of(f"m{n}", str, int)) for n in self.names]

    def process_element(self, row: Any, ctx: Any) -> Any:
        for value in self.values:
            value.update(value.value() + 1)
        for entries in self.maps:
            entries.put("a", 1)
        return []


def work_of(run: Callable[[], object]) -> Work:
    """Return how many instructions each function of ours runs, on this and on new threads."""
    work = Work()

    def count(frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            work[frame.f_code] += 1
        return count

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if "forebay_" not in name or any(one in name for one in MEASURES):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return count(frame, event, argument)

    before = sys.gettrace()
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
        threading.settrace(None)  # type: ignore[arg-type] # as it is without one
    return work


def grows_too_much(measured: Callable[[int], Work]) -> dict[str, list[int]]:
    """Return the functions whose work bends upwards from one number of states to the next.

    Work that grows in proportion does not bend, whatever it does in any case. A look at all tables
    for each table would.
    """
    measured(1)  # whatever happens once in a process
    works = [measured(STATES * times) for times in (1, 2, 3)]
    found = {}
    for code in works[2]:
        few, more, most = (work[code] for work in works)
        if few and most - 2 * more + few >= STATES**2:
            found[f"{code.co_qualname} ({code.co_filename})"] = [few, more, most]
    return found


def backend_of(name: str) -> Any:
    return ReferenceBackend if name == "reference" else plugins().backend(name)


@pytest.mark.parametrize(
    ("backend", "spills"),
    [("heap", False), ("lsm", False), ("lsm", True), ("reference", False)],
    ids=["heap", "lsm", "lsm that spills", "reference"],
)
def test_a_micro_batch_looks_at_each_table_a_few_times(backend: str, *, spills: bool) -> None:
    def measured(states: int) -> Work:
        storage = open_storage(f"memory://cost-{states}-{backend}-{spills}")
        options = {"memtable-bytes": BYTES_SPILLED * states} if spills else {}
        job = KeyedJob(backend_of(backend), storage, key_type=str, options=options)
        job.run(Many(states), ROWS)
        return work_of(lambda: job.run(Many(states), ROWS))

    assert grows_too_much(measured) == {}


@pytest.mark.parametrize("backend", ["heap", "lsm", "reference"])
def test_a_rescale_looks_at_each_table_a_few_times(backend: str) -> None:
    def measured(states: int) -> Work:
        storage = open_storage(f"memory://rescaled-{states}-{backend}")
        job = KeyedJob(backend_of(backend), storage, key_type=str)
        job.run(Many(states), ROWS)
        job.parallelism = 2
        return work_of(lambda: job.run(Many(states), ROWS))

    assert grows_too_much(measured) == {}
