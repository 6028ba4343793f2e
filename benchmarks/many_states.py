"""Cost of a micro-batch by the number of states: ``python -m benchmarks.many_states`` (a minute).

A function declares many value states, and updates each of them for a micro-batch's only row. The
figures are CPU times of the harness, the protocol and a backend on local files.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from typing import Any, Final

import click

from benchmarks.memory import in_fresh_process
from benchmarks.report import Line, benchmark
from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor

FEW: Final = 100
MANY: Final = 800
WARM: Final = 2
MEASURED: Final = 4
BACKENDS: Final = ("heap", "lsm")
ROWS: Final = [{"k": "a"}]


class Many(KeyedProcessFunction[Any, Any, Any]):
    """Updates all of its states."""

    def __init__(self, states: int) -> None:
        """Have this number of states."""
        self.number = states

    def open(self, context: Any) -> None:
        """Declare the states."""
        names = [f"s{number}" for number in range(self.number)]
        self.states = [
            context.get_state(ValueStateDescriptor(name, int, default=0)) for name in names
        ]

    def process_element(self, row: Any, ctx: Any) -> list[Any]:
        """Read and update each state."""
        for state in self.states:
            state.update(state.value() + 1)
        return []


def batch_ms(backend: str, states: int) -> float:
    """Return the CPU time of a warm micro-batch of one row, in ms."""
    from forebay_testing import FunctionHarness

    with (
        tempfile.TemporaryDirectory() as folder,
        FunctionHarness(Many(states), "k", state_dir=folder, backend=backend) as harness,
    ):
        for _ in range(WARM):
            harness.process(ROWS)
        started = time.process_time()
        for _ in range(MEASURED):
            harness.process(ROWS)
        return (time.process_time() - started) * 1_000 / MEASURED


def line(what: str, pairs: list[tuple[float, float]], bound: float) -> Line:
    """Return the measured line of pairs of CPU times, in ms."""
    first, second = (statistics.median(side) for side in zip(*pairs, strict=True))
    return Line(
        what=what,
        values=[one / other for one, other in pairs],
        bound=bound,
        at_least=False,
        detail=f"{first:.0f} / {second:.0f} ms",
    )


@benchmark("many-states")
@click.option("--rounds", default=3, show_default=True)
def main(*, rounds: int) -> list[Line]:
    """Measure the cost of states."""
    found: dict[tuple[str, int], list[float]] = {}
    for _ in range(rounds):
        for backend in BACKENDS:
            for states in (FEW, MANY):
                ms = in_fresh_process(batch_ms, backend, states)
                found.setdefault((backend, states), []).append(ms)
    grown = [
        line(
            f"CPU of a micro-batch, {backend}: {MANY} states ÷ {FEW}",
            list(zip(found[backend, MANY], found[backend, FEW], strict=True)),
            1.25 * MANY / FEW,
        )
        for backend in BACKENDS
    ]
    both = list(zip(found["lsm", MANY], found["heap", MANY], strict=True))
    return [*grown, line(f"CPU of a micro-batch, {MANY} states: lsm ÷ heap", both, 2.0)]


if __name__ == "__main__":
    main()
