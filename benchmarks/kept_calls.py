"""CPU of a kept call beyond a plain one: ``python -m benchmarks.kept_calls``.

One subtask runs the same micro-batch with ``ctx.call`` and with ``ctx.kept_call``, in turn, and
once more after it was lost, when every call is found. The process's CPU time includes the writer's
thread.
"""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import click

from forebay_backend_heap import HeapBackend
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing.job import KeyedJob

MOST_US: Final = 12.0
"""The most CPU of a kept call beyond a plain one."""
_US: Final = 1e6


class Row(NamedTuple):
    key: int
    text: str
    amount: float


ANSWER: Final = {"score": 0.93, "label": "ok"}


async def ask(text: str, amount: float) -> Any:
    """Answer at once."""
    del text, amount
    return ANSWER


async def plain(row: Any, ctx: Any) -> Any:
    """Make a call."""
    answer = await ctx.call(ask, row.text, row.amount)
    return [(row.key, answer["score"])]


async def kept(row: Any, ctx: Any) -> Any:
    """Make a call, and keep its answer."""
    answer = await ctx.kept_call("score-v2", ask, row.text, row.amount)
    return [(row.key, answer["score"])]


def cpu_us(function: Callable[..., Any], rows: list[Row], *, lost: bool = False) -> float:
    """Return the CPU time of a call in µs; with ``lost`` of one that is found."""
    job = KeyedJob(HeapBackend, MemoryStorage(f"memory://{uuid.uuid4()}"), fresh=lambda fn: fn)
    job.run(function, [])
    if lost:
        job.run(function, rows, crash=True)
    began = time.process_time()
    job.run(function, rows)
    took = time.process_time() - began
    job.close()
    return took / len(rows) * _US


@click.command()
@click.option("--rows", default=20_000, show_default=True, help="Calls of a micro-batch.")
@click.option("--turns", default=7, show_default=True, help="Micro-batches of each kind.")
def main(rows: int, turns: int) -> None:
    """Print the CPU of a call in µs, and what keeping its answer adds."""
    batch = [Row(n, f"payment {n} at some merchant", 99.5) for n in range(rows)]
    found = [
        (cpu_us(plain, batch), cpu_us(kept, batch), cpu_us(kept, batch, lost=True))
        for _ in range(turns)
    ]
    more = statistics.median(kept_us - plain_us for plain_us, kept_us, _ in found)
    for what, number in (("ctx.call", 0), ("ctx.kept_call", 1), ("found", 2)):
        print(f"{what:14} {statistics.median(one[number] for one in found):6.1f} us")
    print(f"{'added':14} {more:6.1f} us, at most {MOST_US}")
    if more > MOST_US:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
