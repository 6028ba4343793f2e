"""A heap state by columns and by dictionaries: ``python -m benchmarks.heap_columns`` (a minute).

Measures the backend alone, on local files: opening and memory in fresh processes, in pairs; the CPU
time of look-ups in the large state; and the time in which a commit makes changed keys durable.
"""

from __future__ import annotations

import gc
import tempfile
import time
from functools import partial
from statistics import median
from typing import Any, Final

import attrs
import click
import numpy as np

from benchmarks.heap_open_commit import SPEC, State, Version, hash_group
from benchmarks.memory import in_fresh_process, resident_bytes, user
from benchmarks.report import Line, benchmark
from forebay_backend_heap import HeapBackend
from forebay_state_api.codecs.columns import Column
from forebay_state_api.contract.backend import StateBackend, Table
from forebay_state_api.contract.columns import CellColumns, EncodedKeys

BY_COLUMNS: Final = attrs.evolve(SPEC, columns=True)
OPENING: Final = 1.5
MEMORY: Final = 0.6
LOOK_UPS_MS: Final = 10.0
COMMIT_MS: Final = 3.0


def opened(folder: str, version: Version, *, columns: bool) -> tuple[StateBackend, Table]:
    """Open a version, and decode its table."""
    backend = HeapBackend.open(version.opening(folder))
    return backend, backend.table(BY_COLUMNS if columns else SPEC)


def opening(*, folder: str, version: Version, columns: bool) -> tuple[float, int]:
    """Return the CPU seconds of an opening in this process, and the bytes that it takes."""
    before, start = resident_bytes(), time.process_time()
    held = opened(folder, version, columns=columns)
    seconds = time.process_time() - start
    grown = resident_bytes() - before
    held[0].close()
    return seconds, grown


def keys_of(numbers: Any) -> EncodedKeys:
    """Return the keys of some users."""
    keys = [user(number) for number in numbers]
    return EncodedKeys.of(SPEC.key, keys, [hash_group(key) for key in keys])


def look_ups(folder: str, version: Version, keys: int, asked: int, runs: int) -> list[float]:
    """Return the CPU milliseconds of reading ``asked`` keys, for each run."""
    backend, table = opened(folder, version, columns=True)
    drawn, found = np.random.default_rng(3), []
    for _ in range(runs):
        numbers = keys_of(drawn.choice(keys, asked, replace=False).tolist())
        gc.collect()
        start = time.process_time()
        cells = table.get_columns(BY_COLUMNS, None, numbers)
        found.append(1e3 * (time.process_time() - start))
        assert cells.present is None, "a key was not found"
    backend.close()
    return found


def commits(state: State, changed: int, runs: int) -> list[float]:
    """Return the milliseconds in which commits make changed keys durable, for each run.

    The state changes, and its snapshot is left out: it is written in the background.
    """
    drawn, found = np.random.default_rng(5), []
    for run in range(runs):
        version = state.version
        backend, table = opened(state.folder, version, columns=True)
        keys = keys_of(drawn.choice(state.keys, changed, replace=False).tolist())
        values = Column(np.full(changed, run)), Column(drawn.integers(0, 1 << 30, changed))
        table.apply_columns(BY_COLUMNS, None, keys, CellColumns(values))
        gc.collect()
        start = time.perf_counter()
        committed = backend.commit(version.number + 1)
        found.append(1e3 * (time.perf_counter() - start))
        manifest_id = f"{state.folder}-columns-{version.number + 1}"
        backend.installed(manifest_id)
        backend.close()
        state.version = Version(version.number + 1, manifest_id, committed)
    return found[1:]


@benchmark("heap-columns")
@click.option("--keys", default=1_000_000, show_default=True)
@click.option("--changed", default=10_000, show_default=True, help="Keys changed by a commit.")
@click.option("--asked", default=30_000, show_default=True, help="Keys of a look-up.")
@click.option("--pairs", default=3, show_default=True, help="Pairs of openings.")
@click.option("--runs", default=9, show_default=True, help="Look-ups, and commits.")
def main(*, keys: int, changed: int, asked: int, pairs: int, runs: int) -> list[Line]:
    """Measure a heap state that is held by columns."""
    with tempfile.TemporaryDirectory() as folder:
        state = State.of(folder, keys)
        each = [
            [
                in_fresh_process(
                    partial(opening, folder=folder, version=state.version, columns=columns)
                )
                for columns in (True, False)
            ]
            for _ in range(pairs)
        ]
        read = in_fresh_process(look_ups, folder, state.version, keys, asked, runs)
        written = commits(state, changed, runs)
    speeds = [keys / columns[0] / 1e3 for columns, _ in each]
    sizes = [columns[1] / keys for columns, _ in each]
    return [
        Line(
            what=f"opening {keys:,} keys: columns ÷ dictionaries",
            values=[cells[0] / columns[0] for columns, cells in each],
            bound=OPENING,
            at_least=True,
            detail=f"{median(speeds):,.0f} thousand keys per CPU second",
        ),
        Line(
            what=f"memory, {keys:,} keys: columns ÷ dictionaries",
            values=[columns[1] / cells[1] for columns, cells in each],
            bound=MEMORY,
            at_least=False,
            detail=f"{median(sizes):.0f} bytes a key",
        ),
        Line(
            what=f"{asked:,} look-ups in {keys:,} keys, CPU",
            values=read,
            bound=LOOK_UPS_MS,
            at_least=False,
            unit="ms",
            detail=f"{1e6 * median(read) / asked:.0f} ns a key",
        ),
        Line(
            what=f"commit of {changed:,} of {keys:,} keys",
            values=written,
            bound=COMMIT_MS,
            at_least=False,
            unit="ms",
            detail=f"slowest of {len(written)}: {max(written):.1f}",
        ),
    ]


if __name__ == "__main__":
    main()
