"""Keyed functions that read state, call and update: ``python -m benchmarks.keyed_calls``.

The ideal is the time of the calls alone, with as many in flight as may be, all the time. The same
job runs by hand, on transformWithState with blocking calls, and on PyFlink, if an environment that
has it is named.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import attrs
import click

from benchmarks.calls_engine import (
    ROWS,
    SecondsOf,
    asyncio_alone,
    heavy_tail,
    loops_of,
    ours,
    rows_of_as_many_keys,
    semaphore_and_gather,
    ten_ms,
)
from benchmarks.calls_lsm import measure_overlap
from benchmarks.ordered_wait import flink_seconds
from benchmarks.report import Line, Result, benchmark, table

HERE: Final = Path(__file__).parent
UV: Final = find_spec("uvloop") is not None
PARTS: Final = ("engine", "flink", "lsm", "spark")
TWS_ROWS: Final = 100
"""Rows of a micro-batch of transformWithState, whose calls are made one after another."""


class Measured:
    """Runs each subject several times, and holds the lines and the peers' figures."""

    def __init__(self, repeat: int) -> None:
        self.repeat = repeat
        self.rows = rows_of_as_many_keys()
        self.lines: list[Line] = []
        self.peers: list[list[str]] = []

    def against_ideal(
        self, what: str, seconds_of: SecondsOf, in_flight: int, ideal: float, bound: float
    ) -> None:
        """Measure our time divided by the ideal, and the peers' on the same calls."""
        took = self._times(seconds_of, in_flight, uv=UV)
        self.lines.append(
            Line(
                what=f"{what}: time ÷ ideal",
                values=[one / ideal for one in took],
                bound=bound,
                at_least=False,
                detail=f"{statistics.median(took):.3f} / {ideal:.3f} s",
            )
        )
        if UV:
            plain = statistics.median(self._times(seconds_of, in_flight, uv=False))
            self._peer(what, "ours on asyncio's own loop", plain, ideal)
        with loops_of(uv=UV):
            by_hand = semaphore_and_gather(seconds_of, self.rows, in_flight)
        self._peer(what, "semaphore, gather and a dict", by_hand, ideal)
        with loops_of(uv=UV):
            floor = [asyncio_alone(seconds_of, self.rows, in_flight) for _ in range(self.repeat)]
        alone = "asyncio alone: tasks that only call, without state"
        self._peer(what, alone, statistics.median(floor), ideal)

    def _times(self, seconds_of: SecondsOf, in_flight: int, *, uv: bool) -> list[float]:
        with loops_of(uv=uv):
            return [ours(seconds_of, self.rows, in_flight) for _ in range(self.repeat)]

    def flink(self, python: str, what: str, in_flight: int, ideal: float) -> None:
        """Measure PyFlink's call before a keyed function, in turn with ours."""
        ratios, theirs = [], []
        for _ in range(max(self.repeat // 2, 1)):
            found = flink_seconds(python, "peer_flink_calls.py", ROWS, 10, in_flight)
            with loops_of(uv=UV):
                mine = ours(ten_ms, self.rows, in_flight)
            theirs.append(found["seconds"])
            ratios.append(found["seconds"] / mine)
        name = f"PyFlink {found['version']}, AsyncDataStream before a keyed function"
        self._peer(what, name, statistics.median(theirs), ideal)
        self.lines.append(
            Line(what=f"{what}: {name} ÷ ours", values=ratios, bound=3, at_least=True)
        )

    def _peer(self, what: str, name: str, took: float, ideal: float) -> None:
        self.peers.append([what, name, f"{took:.3f}", f"{took / ideal:.2f}"])


def _stream(job: str, *options: Any) -> list[dict[str, float]]:
    command = [sys.executable, "-m", "benchmarks.calls_spark", job, *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=HERE.parent)
    found: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def _rate(batches: Sequence[dict[str, float]]) -> float:
    """Return the rows per second of Spark's ``addBatch``, of all batches but the first."""
    return statistics.median(one["rows"] / one["add_batch_s"] for one in batches[1:])


def spark_lines() -> list[Line]:
    """Measure the streams with an HTTP server, ours on both backends and the peer's."""
    lines, rates = [], []
    for backend in ("heap", "lsm"):
        found = _stream(backend)
        ideals = [one["rows"] / 100 * 0.1 for one in found]
        works = [one["work_s"] for one in found]
        rates.append(_rate(found))
        lines.append(
            Line(
                what=f"Spark, {backend}, HTTP on loopback, 100 ms a call, 100 in flight: ideal ÷ "
                "time of the work",
                values=[ideal / work for ideal, work in zip(ideals, works, strict=True)],
                bound=0.85,
                at_least=True,
                detail=f"{ideals[0]:.2f} / {statistics.median(works):.2f} s",
            )
        )
    theirs = _rate(_stream("tws", "--batches", 3, "--rows", TWS_ROWS))
    lines.append(
        Line(
            what="the same, rows/s of addBatch: ours ÷ transformWithState with blocking calls",
            values=[rate / theirs for rate in rates],
            bound=50,
            at_least=True,
            detail=f"heap {rates[0]:,.0f}, lsm {rates[1]:,.0f} / {theirs:.1f} rows/s",
        )
    )
    return lines


def engine_part(measured: Measured) -> None:
    """Measure the engine alone against ideals."""
    measured.against_ideal("10 ms, 100 in flight", ten_ms, 100, 1.0, 1.10)
    measured.against_ideal("10 ms, 1,000 in flight", ten_ms, 1_000, 0.1, 1.35)
    tail = "1 % of calls 20 times slower, 100 in flight"
    measured.against_ideal(tail, heavy_tail, 100, 1.19, 1.3)


def lsm_part(measured: Measured) -> None:
    """Measure reads of remote state with calls."""
    with tempfile.TemporaryDirectory() as folder:
        measured.lines.append(measure_overlap(folder, measured.repeat))


def taken_from(earlier: Path, measured: Measured) -> None:
    """Add what another run measured."""
    found = json.loads(earlier.read_text())
    fields = [field.name for field in attrs.fields(Line)]
    measured.lines += [Line(**{name: one[name] for name in fields}) for one in found["lines"]]
    measured.peers += found["peers"]


@benchmark("keyed-calls")
@click.option("--repeat", default=5, show_default=True, help="Runs of each subject.")
@click.option("--flink-python", help="A Python that has apache-flink.")
@click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, help="Default: all.")
@click.option(
    "--earlier",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    help="JSON of runs of other parts, to be shown with this one.",
)
def main(
    *, repeat: int, flink_python: str | None, parts: Sequence[str], earlier: Sequence[Path]
) -> Result:
    """Measure keyed functions that call."""
    measured = Measured(repeat)
    for path in earlier:
        taken_from(path, measured)
    parts = parts or PARTS
    if "engine" in parts:
        engine_part(measured)
    if "flink" in parts and flink_python:
        measured.flink(flink_python, "10 ms, 100 in flight", 100, 1.0)
    if "lsm" in parts:
        lsm_part(measured)
    if "spark" in parts:
        measured.lines += spark_lines()
    loop = "uvloop" if UV else "asyncio's own loop"
    about = (
        f"On {loop} unless stated otherwise, without Spark where it is not named; the version by "
        f"hand ran once. transformWithState had {TWS_ROWS} rows in a micro-batch."
    )
    notes = [table(measured.peers, [f"{ROWS:,} rows", "by", "seconds", "÷ ideal"]), about]
    return Result(lines=measured.lines, notes=notes, data={"peers": measured.peers})


if __name__ == "__main__":
    main()
