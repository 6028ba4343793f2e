"""The work of a micro-batch grows with the number of states, not with its square; readers read the
states that they are asked for."""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from types import CodeType, FrameType
from typing import Any

import pytest

from forebay_state_api import (
    KeyedProcessFunction,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.plugins import plugins
from forebay_state_api.settings import EngineSettings
from forebay_state_api.storage.opening import open_storage
from forebay_state_processor.reading import open_state
from forebay_testing.job import KeyedJob
from forebay_testing.reference import ReferenceBackend
from forebay_testing.storage import CountingStorage

pytestmark = pytest.mark.long

STATES = 4
BYTES_SPILLED = 240
"""For each state, so that a micro-batch spills as often with any number of them."""
OPTIONS: dict[str, dict[str, Any]] = {"heap": {"held-bytes": 0}}
"""Manifests hold small files: whether they do is a step in the number of states."""
ROWS = [("ann",), ("bob",)]
MEASURES = (
    "forebay_state_api/metrics/",
    "forebay_engine/execution/subtask_metrics.py",
    "forebay_engine/versions/format/figures.py",
)
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
        options = dict(OPTIONS.get(backend, {}))
        if spills:
            options["memtable-bytes"] = BYTES_SPILLED * states
        # Of threads that read ahead, it depends on chance how many find a new file unread.
        settings = EngineSettings(read_ahead=not spills)
        job = KeyedJob(
            backend_of(backend), storage, key_type=str, options=options, settings=settings
        )
        job.run(Many(states), ROWS)
        return work_of(lambda: job.run(Many(states), ROWS))

    assert grows_too_much(measured) == {}


@pytest.mark.parametrize("backend", ["heap", "lsm", "reference"])
def test_a_rescale_looks_at_each_table_a_few_times(backend: str) -> None:
    def measured(states: int) -> Work:
        storage = open_storage(f"memory://rescaled-{states}-{backend}")
        options = OPTIONS.get(backend, {})
        job = KeyedJob(backend_of(backend), storage, key_type=str, options=options)
        job.run(Many(states), ROWS)
        job.parallelism = 2
        return work_of(lambda: job.run(Many(states), ROWS))

    assert grows_too_much(measured) == {}


class Mixed(KeyedProcessFunction[Any, Any, Any]):
    """Has a large state, a small one, and a timer."""

    def open(self, context: Any) -> None:
        self.large = context.get_state(ValueStateDescriptor("large", bytes))
        self.small = context.get_state(ValueStateDescriptor("small", int))

    def process_element(self, row: Any, ctx: Any) -> Any:
        self.large.update(random.Random(row[0]).randbytes(100_000))
        self.small.update(1)
        ctx.timers.register_processing_time(datetime(2100, 1, 1, tzinfo=UTC))
        return []

    def on_timer(self, at: Any, ctx: Any) -> Any:
        return []


READS: dict[str, Callable[[Any], int]] = {
    "scan": lambda snapshot: len([*snapshot.scan("small")]),
    "to_arrow": lambda snapshot: snapshot.to_arrow("small").read_all().num_rows,
    "table": lambda snapshot: snapshot.table(states=["small"]).read_all().num_rows,
    "timers": lambda snapshot: len([*snapshot.timers()]),
}


@pytest.mark.parametrize("backend", ["heap", "lsm"])
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_readers_read_the_states_that_they_are_asked_for(
    backend: str, read: Callable[[Any], int]
) -> None:
    storage = CountingStorage(open_storage(f"memory://mixed-{backend}-{id(read)}"))
    keys = [f"key {number}" for number in range(8)]
    job = KeyedJob(plugins().backend(backend), storage, key_type=str)
    job.run(Mixed(), [(key,) for key in keys])
    state_dir: Any = storage
    with open_state(state_dir, query="query", uid="operator", provisional=True) as snapshot:
        storage.reset()
        assert read(snapshot) == len(keys)
        assert storage.bytes_read < 100_000
