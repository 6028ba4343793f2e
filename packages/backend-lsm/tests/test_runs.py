"""A file as a run finds the cells it may hold, within the key groups that it is read for."""

from __future__ import annotations

import numpy as np
import pytest

from forebay_backend_lsm.addressing import Addressing
from forebay_backend_lsm.runs import FileRun
from forebay_state_api.keys import KeyGroupRange

KEYS = [f"key {n}" for n in range(2_000)]
WRITTEN = range(4, 12)
"""The key groups of the file's cells."""
LAST = np.uint64((1 << 64) - 1)


@pytest.fixture
def run_of(new_operator, kit):
    """Return a function that opens the file for a range of key groups."""
    operator, spec = new_operator(), kit.spec()
    keys = [key for key in KEYS if kit.group_of(key) in WRITTEN]
    operator.commit((spec, kit.points(dict.fromkeys(keys, 1))))
    (whole,) = operator.table(spec).files

    def make(groups):
        return FileRun(whole.source, spec.name, KeyGroupRange(*groups), whole.reader)

    return make


@pytest.mark.parametrize("asked", [range(16), range(5, 7), range(3, 4), range(12, 16)])
@pytest.mark.parametrize("groups", [(0, 15), (4, 11), (0, 6), (6, 6), (9, 15), (13, 15), (0, 1)])
def test_candidates_are_all_cells_of_the_range_and_few_others(run_of, kit, groups, asked):
    run = run_of(groups)
    keys = [key for key in KEYS if kit.group_of(key) in asked]
    batch = Addressing(run.reader).asked(None, [(kit.group_of(key), key) for key in keys])
    which, blocks = run.candidates(batch, np.arange(len(batch)))
    read, found = range(groups[0], groups[1] + 1), set(which.tolist())
    written = {n for n, key in enumerate(keys) if kit.group_of(key) in WRITTEN}
    there = {n for n in written if kit.group_of(keys[n]) in read}
    assert found & written == there
    assert len(found - there) <= 0.02 * len(keys), "the filter lets few others pass"
    first = run.table.first_addresses
    assert (first[blocks] <= batch.addresses[which]).all()
    assert (batch.addresses[which] <= np.append(first[1:], LAST)[blocks]).all()
