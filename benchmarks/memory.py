"""Memory of a heap state and of a dict with the same values: ``python -m benchmarks.memory``.

Each figure is the growth of the resident memory of a fresh process: one builds the dict, the other
opens a committed version.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any, Final

import click

from benchmarks.data import Event
from benchmarks.report import Line, benchmark

BOUND: Final = 2.0
SLICE: Final = 50_000


def resident_bytes() -> int:
    """Return the resident memory of this process (Linux)."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def user(number: int) -> str:
    """Return the key of one user."""
    return f"user_{number:07d}"


def dict_bytes(keys: int) -> int:
    """Return the resident bytes of ``{user: (count, sum)}``."""
    before = resident_bytes()
    state = {user(number): (1, 1_000 + number) for number in range(keys)}
    return resident_bytes() - before if state else 0


def make_version(url: str, keys: int) -> None:
    """Commit a version with the values of `dict_bytes`."""
    from benchmarks.engine_drive import EngineDrive
    from benchmarks.functions import CountSync

    with EngineDrive(CountSync(), url) as drive:
        for start in range(0, keys, SLICE):
            numbers = range(start, min(start + SLICE, keys))
            rows = [Event(user(number), 1_000 + number, number) for number in numbers]
            drive(rows, *drive.columns_of(rows))
        drive.subtask.commit()


def heap_bytes(url: str, keys: int) -> int:
    """Return the resident bytes of the opened version when its table can be read."""
    from benchmarks.engine_drive import EngineDrive
    from benchmarks.functions import CountSync

    before = resident_bytes()
    with EngineDrive(CountSync(), url, versions=1) as drive:
        after = resident_bytes()
        probe = [Event(user(keys - 1), 1, 0)]
        if drive(probe, *drive.columns_of(probe))[0][2] != 2:
            raise RuntimeError("the opened version does not hold what was committed")
    return after - before


def in_fresh_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """Run ``work`` in a fresh process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(work, *arguments).result()


@benchmark("memory")
@click.option("--keys", default=1_000_000, show_default=True)
@click.option("--pairs", default=3, show_default=True, help="Pairs of runs; each gives a ratio.")
def main(*, keys: int, pairs: int) -> list[Line]:
    """Measure the memory of a heap state."""
    heap, plain = [], []
    with tempfile.TemporaryDirectory() as folder:
        in_fresh_process(make_version, folder, keys)
        for _ in range(pairs):
            plain.append(in_fresh_process(dict_bytes, keys))
            heap.append(in_fresh_process(heap_bytes, folder, keys))
    return [
        Line(
            what=f"memory, {keys:,} keys: heap state ÷ plain dict",
            values=[ours / bare for ours, bare in zip(heap, plain, strict=True)],
            bound=BOUND,
            at_least=False,
            detail=f"{median(heap) / keys:.0f} / {median(plain) / keys:.0f} bytes a key",
        )
    ]


if __name__ == "__main__":
    main()
