"""The memory of a compaction does not depend on the size of its inputs."""

from __future__ import annotations

import statistics
import tracemalloc
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pytest

from forebay_backend_lsm.compactor import LsmCompactor
from forebay_backend_lsm.files import CellKind, Cells, addresses_of, write_file
from forebay_state_api.storage.opening import open_storage

pytestmark = pytest.mark.long


@contextmanager
def counting():
    """A pool that counts pyarrow's allocations in this test."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(before)


def run_of(model, storage, name, count):
    rng = np.random.default_rng(count)
    keys = [b"%016d" % i for i in range(count)]
    values = [bytes(row) for row in rng.integers(0, 256, (count, 100), dtype=np.uint8)]
    addresses = addresses_of(np.arange(count) % 16, keys)
    cells = Cells.of(addresses, CellKind.PUT, keys, values).sorted()
    return write_file(storage, name, [(model.header(), [cells])], range=model.GROUPS)


def peaks_bytes(model, storage, count):
    files = [run_of(model, storage, f"{count}-{i}", count) for i in range(4)]
    return [peak_bytes(model, storage, files, f"out-{n}/") for n in range(3)]


def peak_bytes(model, storage, files, prefix):
    job = model.job_of(files, prefix=prefix, target_bytes=512 * 1024)
    count = files[0].meta["entries"]
    tracemalloc.start()
    with counting() as pool:
        result = LsmCompactor().compact(job, storage, lambda: False)
    _, python = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (result.entries_in, result.entries_out) == (4 * count, count)
    assert sum(file.size for file in result.outputs) > 100 * count
    return python + pool.max_memory()


def test_memory_is_bounded_whatever_the_inputs(model, tmp_path):
    # The amount waiting to be written at the peak depends on the scheduling of threads.
    # In-memory storage would keep the written files in memory.
    peaks = [
        peaks_bytes(model, open_storage(tmp_path / str(count)), count) for count in (20_000, 80_000)
    ]
    small, large = map(statistics.median, peaks)
    # 37 MB of input compared with 9 MB: only the indexes grow.
    assert large < small + 2 * 1024 * 1024
    assert max(map(max, peaks)) < 24 * 1024 * 1024
