"""Memory of a process as an lsm state grows: ``python -m benchmarks.lsm_memory_curve`` (15 min).

One subtask in the harness gets 100,000 new keys in each micro-batch, on local files, with a
memtable of 32 MiB and the local compaction service; each run has its own process. The target is the
sum on the page of forebay-backend-lsm, with its first two terms taken from the first micro-batch.
"""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import click

from benchmarks.memory import in_fresh_process
from benchmarks.report import Line, benchmark
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor
from forebay_testing import FunctionHarness

BATCH: Final = 100_000
MEMTABLE_MIB: Final = 32
COMPACTING_MB: Final = 100
BYTES_PER_KEY: Final = 2
"""The cache of filters and indexes."""
ARENAS_MB: Final = 200
"""Memory that glibc may keep in addition on two cores, unless it has one arena for all threads."""
ARENAS: Final = "MALLOC_ARENA_MAX"


class Row(NamedTuple):
    """A row of the input."""

    key: str
    value: int


class Sum(KeyedProcessFunction[str, Row, Any]):
    """Sums the rows of each key."""

    def open(self, context: Any) -> None:
        """Declare the state."""
        self.sum = context.get_state(ValueStateDescriptor("sum", int, default=0))

    def process_element(self, row: Row, ctx: Any) -> None:
        """Add a row."""
        self.sum.update(self.sum.value() + row.value)


def peaks(cache_mib: int, keys: Sequence[int]) -> list[float]:
    """Return the peak size of this process, in MB, at each number of keys."""
    options = {"block-cache-bytes": cache_mib << 20, "memtable-bytes": MEMTABLE_MIB << 20}
    found = []
    with (
        tempfile.TemporaryDirectory() as folder,
        FunctionHarness(
            Sum(), key_by="key", state_dir=folder, backend="lsm", backend_options=options
        ) as harness,
    ):
        for first in range(0, max(keys), BATCH):
            harness.process([Row(f"key-{n:012d}", 1) for n in range(first, first + BATCH)])
            if first + BATCH in keys:
                found.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6)
    return found


@contextmanager
def arenas(most: int | None) -> Iterator[None]:
    """Set glibc's number of arenas for processes started in this context; ``None``: its default."""
    kept = os.environ.pop(ARENAS, None)
    if most is not None:
        os.environ[ARENAS] = str(most)
    try:
        yield
    finally:
        os.environ.pop(ARENAS, None)
        if kept is not None:
            os.environ[ARENAS] = kept


def curve(cache_mib: int, keys: Sequence[int], most: int | None) -> Line:
    """Measure one curve."""
    with arenas(most):
        first, *found = in_fresh_process(peaks, cache_mib, [BATCH, *keys])
    told = cache_mib * 1.048576 + MEMTABLE_MIB * 1.048576 + COMPACTING_MB
    told += first + max(keys) * BYTES_PER_KEY / 1e6 + (ARENAS_MB if most is None else 0)
    points = ", ".join(f"{n / 1e6:g} M {mb:.0f}" for n, mb in zip(keys, found, strict=True))
    named = "glibc's arenas" if most is None else f"{ARENAS}={most}"
    return Line(
        what=f"largest size at {max(keys):,} keys, cache of {cache_mib} MiB, {named}",
        values=[found[-1]],
        bound=round(told),
        at_least=False,
        unit="MB",
        detail=f"first micro-batch {first:.0f}; {points}",
    )


@benchmark("lsm-memory-curve")
@click.option(
    "--keys",
    type=click.IntRange(min=2_000_000),
    default=5_000_000,
    show_default=True,
    help="Keys at the end.",
)
def main(*, keys: int) -> list[Line]:
    """Measure how memory grows with the state."""
    marks = [keys * tenths // 10 // BATCH * BATCH for tenths in (1, 3, 6, 10)]
    return [curve(cache, marks, most) for cache in (1, 96) for most in (None, 1)]


if __name__ == "__main__":
    main()
