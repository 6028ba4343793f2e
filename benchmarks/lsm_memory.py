"""State larger than the cache: ``python -m benchmarks.lsm_memory`` (five minutes).

A function reads and rewrites 64 bytes under uniformly random keys, on the lsm backend with a cache
of 128 MiB and the local compaction service, on local files, through the engine, without Spark. The
figures are rows per second over ten million keys, about a gigabyte, compared with one million, and
the peak memory of the process.
"""

from __future__ import annotations

import random
import resource
import statistics
import tempfile
import time
from typing import Any, Final

import click

from benchmarks.lsm_state import GROUPS, SPEC, Served, asked, group_of, key_of, value_of
from benchmarks.memory import in_fresh_process
from benchmarks.report import Line, benchmark
from forebay_backend_lsm import LsmBackend
from forebay_engine.execution.engine import Engine
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor
from forebay_state_api.codecs import codec_for
from forebay_state_api.job.context import RuntimeContext

CACHE: Final = {"block-cache-bytes": 128 << 20}
ROWS: Final = 83_333
"""Rows of a micro-batch."""
SLICE: Final = 1_000
"""Rows that the engine gets at a time, as on Spark."""


class Rewrite(KeyedProcessFunction[bytes, int, int]):
    """Reads and rewrites a value."""

    def open(self, context: Any) -> None:
        """Declare the state."""
        self.state = context.get_state(ValueStateDescriptor("s", bytes))

    def process_element(self, row: int, ctx: Any) -> list[int]:
        """Change the first bytes."""
        value = self.state.value()
        self.state.update(row.to_bytes(8, "big") + value[8:])
        return [row]


def built(folder: str, keys: int) -> Served:
    """A state of a number of keys."""
    state = Served(folder, options=CACHE)
    step = 500_000
    for start in range(0, keys, step):
        state.commit(range(start, min(start + step, keys)), slice_cells=100_000)
    return state


def micro_batch(state: Served, numbers: list[int]) -> float:
    """Run a micro-batch; return the seconds from the opening to the commit."""
    context = RuntimeContext(
        operator_uid="bench",
        subtask_index=0,
        parallelism=1,
        max_parallelism=len(GROUPS),
        attempt_number=0,
        batch_id=state.version,
    )
    keys = [key_of(number) for number in numbers]
    groups = [group_of(number) for number in numbers]
    start = time.perf_counter()
    backend = LsmBackend.open(state.opening())
    codec = codec_for(bytes, what="the key")
    engine = Engine(Rewrite(), backend, context, key_codec=codec, now_us=0)
    engine.open()
    for first in range(0, len(numbers), SLICE):
        part = slice(first, first + SLICE)
        engine.process(numbers[part], keys[part], groups[part])
    engine.finish()
    state.state = backend.commit(state.version + 1)
    state.version += 1
    backend.installed(str(state.version))
    seconds = time.perf_counter() - start
    engine.close()
    backend.close()
    return seconds


def run(state: Served, keys: int, batches: int) -> tuple[float, int]:
    """Return rows per second without the first two micro-batches, and the process's peak size."""
    rng = random.Random(5)
    taken = [micro_batch(state, rng.choices(range(keys), k=ROWS)) for _ in range(batches)]
    check = rng.sample(range(keys), 1_000)
    backend = LsmBackend.open(state.opening())
    found = backend.table(SPEC).get_many(None, asked(check))
    backend.close()
    if [value[8:] for value in found] != [value_of(number)[8:] for number in check]:
        raise RuntimeError("the state does not hold what was written")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return ROWS / statistics.median(taken[2:]), peak


def measure(folder: str, keys: int, batches: int) -> tuple[float, int, int]:
    """Build in one process and run in another; return rows/s, peak bytes and the state's bytes."""
    state = in_fresh_process(built, folder, keys)
    rate, peak = in_fresh_process(run, state, keys, batches)
    return rate, peak, state.state.bytes_total


@benchmark("lsm-memory")
@click.option("--keys", default=10_000_000, show_default=True, help="Keys of the larger state.")
@click.option("--batches", default=12, show_default=True, help="Micro-batches of each state.")
def main(*, keys: int, batches: int) -> list[Line]:
    """Measure a state larger than the cache."""
    with tempfile.TemporaryDirectory() as folder:
        small = measure(f"{folder}/small", keys // 10, batches)
        large = measure(f"{folder}/large", keys, batches)
    return [
        Line(
            what=f"rows/s over {keys:,} keys ÷ over {keys // 10:,}, cache of 128 MiB",
            values=[large[0] / small[0]],
            bound=0.4,
            at_least=True,
            detail=f"{large[0]:,.0f} / {small[0]:,.0f} rows/s, {large[2] / 1e9:.2f} GB of files",
        ),
        Line(
            what=f"largest resident size of the process, {keys:,} keys",
            values=[large[1] / 1e6],
            bound=600,
            at_least=False,
            unit="MB",
            detail=f"{small[1] / 1e6:.0f} MB with {keys // 10:,} keys",
        ),
    ]


if __name__ == "__main__":
    main()
