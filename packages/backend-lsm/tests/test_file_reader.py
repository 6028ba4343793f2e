"""Fetching joins reads of close blocks, and uses as many threads as help."""

from __future__ import annotations

import itertools
import random
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_backend_lsm.file_reader import (
    GAP_BYTES,
    RANGES_AT_HAND,
    RANGES_PER_CALL,
    SPAN_BYTES,
    BlockRequest,
    fetch,
)
from forebay_testing import CountingStorage


class Threads(CountingStorage):
    """Records which threads read."""

    def __init__(self, inner, *, waits):
        super().__init__(inner)
        self.waits, self.readers = waits, set()

    def around(self, operation, name, request):
        self.readers.add(threading.current_thread().name)
        return super().around(operation, name, request)


@pytest.fixture
def a_run(new_operator, kit):
    """Return a function that writes a file of many blocks and opens it as a run."""

    def make(*, waits):
        operator, spec = new_operator(), kit.spec(value=bytes)
        values = {f"key {n}": random.Random(n).randbytes(800) for n in range(2_000)}
        operator.commit((spec, kit.points(values)))
        operator.storage = Threads(operator.storage.inner, waits=waits)
        run = operator.table(spec).files[0]
        operator.storage.readers.clear()
        return run, operator.storage

    return make


LARGEST = 300_000


class BlockPositions:
    """The part of a table that describes the positions of its blocks."""

    def __init__(self, sizes, waits):
        self.sizes = np.array(sizes, np.int64)
        self.offsets = np.cumsum(self.sizes) - self.sizes
        self.waits = waits


@given(
    sizes=st.lists(st.sampled_from([1, 700, 4_000, 5_000, LARGEST]), min_size=1, max_size=60),
    chosen=st.data(),
    waits=st.booleans(),
)
def test_ranges_hold_the_blocks_and_little_else(sizes, chosen, waits):
    blocks = sorted(chosen.draw(st.sets(st.sampled_from(range(len(sizes))), min_size=1)))
    layout = BlockPositions(sizes, waits)
    calls = list(BlockRequest(layout, layout, blocks).calls())
    assert [block for call in calls for block in call.blocks] == blocks
    for call in calls:
        for block, (which, start, length) in zip(call.blocks, call.places, strict=True):
            offset, total = call.ranges[which]
            assert offset + start == layout.offsets[block]
            assert length == layout.sizes[block]
            assert start + length <= total
    ranges = [each for call in calls for each in call.ranges]
    for (offset, length), (after, _) in itertools.pairwise(ranges):
        gap = after - (offset + length)
        full = after - offset >= SPAN_BYTES - LARGEST - GAP_BYTES
        assert full or gap > GAP_BYTES, "they could be one"
    for offset, length in ranges:
        inside = [b for b in blocks if offset <= layout.offsets[b] < offset + length]
        assert length - sum(sizes[b] for b in inside) <= GAP_BYTES * (len(inside) - 1)
        assert length < SPAN_BYTES + LARGEST


@pytest.mark.parametrize(("waits", "most"), [(True, RANGES_PER_CALL), (False, RANGES_AT_HAND)])
def test_a_call_asks_for_as_many_ranges_as_help(waits, most):
    layout = BlockPositions([GAP_BYTES + 1] * 400, waits)
    calls = [*BlockRequest(layout, layout, range(0, 400, 2)).calls()]
    assert {len(call.ranges) for call in calls[:-1]} == {most}
    assert 0 < len(calls[-1].ranges) <= most
    assert sum(len(call.ranges) for call in calls) == 200


@pytest.mark.parametrize("step", [1, 2])
def test_what_lies_close_together_is_one_range_up_to_a_length(step):
    layout = BlockPositions([GAP_BYTES] * 400, waits=True)
    (call,) = BlockRequest(layout, layout, range(0, 400, step)).calls()
    assert [length for _, length in call.ranges[:-1]] == [SPAN_BYTES - (step - 1) * GAP_BYTES] * 3


@pytest.mark.parametrize("waits", [True, False])
def test_every_block_comes_once_and_whole(a_run, waits):
    run, storage = a_run(waits=waits)
    numbers = list(range(0, len(run.table.offsets), 12))
    assert len(numbers) > 3 * RANGES_PER_CALL
    found = [
        (number, bytes(raw))
        for _, blocks in fetch([BlockRequest(run.source, run.table, numbers)])
        for number, raw in blocks
    ]
    name = run.source.file.file.name
    locations = [run.table.location(number) for number in numbers]
    raws = run.table.raws(numbers, storage.get_ranges(name, locations))
    assert found == [*zip(numbers, map(bytes, raws), strict=True)]


@pytest.mark.parametrize("waits", [True, False])
def test_only_storage_that_waits_is_read_by_several_threads(a_run, waits):
    run, storage = a_run(waits=waits)
    wanted = BlockRequest(run.source, run.table, range(0, len(run.table.offsets), 12))
    assert len([*fetch([wanted])]) > 1  # a call alone needs no thread
    assert (storage.readers == {threading.current_thread().name}) is not waits
