"""Latency of one record on a quiet stream, until its read and its chained write are done.

``python -m benchmarks.latency``. It uses the engine on the heap backend. Each record is alone in
the engine, so that no later record can make it progress.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any, Final

import click

from benchmarks.data import Event, rows_in_memory
from benchmarks.engine_drive import EngineDrive
from benchmarks.functions import CountCoroutine, CountRow
from benchmarks.report import Line, Result, benchmark
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor

KEYS: Final = 100_000
BOUND_MS: Final = 2.0
PAUSE_S: Final = 0.005
"""The pause between two records, so that the stream is quiet."""


class CountCallbacks(KeyedProcessFunction[str, Event, CountRow]):
    """Counts with callbacks on futures: the write begins when the read is done."""

    def open(self, context: Any) -> None:
        self.acc = context.get_state(ValueStateDescriptor("acc", tuple[int, int]))

    def process_element(self, row: Event, ctx: Any) -> None:
        def add(stored: tuple[int, int] | None) -> Any:
            count, total = stored or (0, 0)
            new = (count + 1, total + row.amount)
            written = self.acc.async_update(new)
            return written.then_accept(lambda _: ctx.collect((row.user, row.amount, *new)))

        self.acc.async_value().then_compose(add)


def latencies_ms(function: Any, runs: int) -> list[float]:
    """Time ``runs`` single records, from passing them to the engine until their output."""
    rows = rows_in_memory(KEYS, KEYS + runs)
    took = []
    with EngineDrive(function, "memory://bench-latency") as drive:
        drive(rows[:KEYS], *drive.columns_of(rows[:KEYS]))
        for row in rows[KEYS:]:
            columns = drive.columns_of([row])
            time.sleep(PAUSE_S)
            started = time.perf_counter()
            output = drive([row], *columns)
            took.append((time.perf_counter() - started) * 1000)
            if len(output) != 1:
                raise click.ClickException(f"{len(output)} rows came out for one record")
    return took


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the value that ``percent`` of all values do not exceed."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def line_of(form: str, took: Sequence[float]) -> Line:
    """Measure one form of the function."""
    half, most = percentile(took, 50), percentile(took, 90)
    return Line(
        what=f"one record, read then write: {form}, 99 % within",
        values=[percentile(took, 99)],
        bound=BOUND_MS,
        at_least=False,
        unit="ms",
        detail=f"50 % {half:.3f}, 90 % {most:.3f}, slowest {max(took):.3f} ms",
    )


@benchmark("latency")
@click.option("--runs", default=200, show_default=True, help="Records for each form.")
def main(*, runs: int) -> Result:
    """Measure the time of single records."""
    forms = {"coroutine": CountCoroutine(), "callbacks": CountCallbacks()}
    took = {form: latencies_ms(function, runs) for form, function in forms.items()}
    lines = [line_of(form, values) for form, values in took.items()]
    return Result(lines=lines, data={"latency_ms": took})


if __name__ == "__main__":
    main()
