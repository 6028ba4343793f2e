"""Records that read remote state and make a call: the lsm backend at 5 ms per request, no cache."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any, Final

from benchmarks.lsm_remote import feed, job_on
from benchmarks.lsm_state import SlowStorage
from benchmarks.report import Line
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor
from forebay_state_api.storage.opening import open_storage

KEYS: Final = 20_000
RECORDS: Final = 5_000
IN_FLIGHT: Final = 1_000
CALLS: Final = 50
"""Calls that the service takes at a time."""
CALL_S: Final = 0.01
IDEAL_S: Final = RECORDS / CALLS * CALL_S
"""The time of the calls alone, with `CALLS` in flight all the time."""


class Reads(KeyedProcessFunction[bytes, int, int]):
    """Reads a value for each record."""

    def open(self, context: Any) -> None:
        """Declare the state."""
        self.n = context.get_state(ValueStateDescriptor("n", int))
        self.calls = asyncio.Semaphore(CALLS)

    async def process_element(self, row: int, ctx: Any) -> list[int]:
        """Read."""
        return [await self.n.async_value()]


class ReadsAndCalls(Reads):
    """Makes a call, too."""

    async def process_element(self, row: int, ctx: Any) -> list[int]:
        """Read, and call."""
        value = await self.n.async_value()
        async with self.calls:
            await asyncio.sleep(CALL_S)
        return [value]


class Filled(Reads):
    """Writes the state that the others read."""

    async def process_element(self, row: int, ctx: Any) -> list[int]:
        """Write."""
        await self.n.async_update(row)
        return []


def measure_overlap(folder: str, repeat: int) -> Line:
    """Measure reads with calls against the larger of reads alone and the calls' ideal."""
    with job_on(open_storage(folder), IN_FLIGHT).subtask(Filled()) as running:
        feed(running, list(range(KEYS)))
        running.commit()

    def seconds(function: Any, seed: int) -> float:
        job = job_on(SlowStorage(open_storage(folder)), IN_FLIGHT)
        job.batch_id = 1
        numbers = random.Random(seed).sample(range(KEYS), RECORDS)
        with job.subtask(function) as running:
            started = time.perf_counter()
            feed(running, numbers)
            took = time.perf_counter() - started
            if sorted(running.take_rows()) != sorted(numbers):
                raise SystemExit("wrong values were read")
        return took

    both = [seconds(ReadsAndCalls(), seed) for seed in range(repeat)]
    reads = [seconds(Reads(), seed) for seed in range(repeat)]
    ideals = [max(read, IDEAL_S) for read in reads]
    return Line(
        what=f"lsm, 5 ms per request, no cache: a read and a call of 10 ms, {CALLS} calls at a "
        "time ÷ the larger of reads alone and ideal calls",
        values=[one / ideal for one, ideal in zip(both, ideals, strict=True)],
        bound=1.2,
        at_least=False,
        detail=f"{min(both):.2f} / {min(reads):.2f} and {IDEAL_S:.2f} s",
    )
