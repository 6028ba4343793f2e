"""The ordered wait, the ideal and the peers compared: ``python -m benchmarks.ordered_wait``.

The ideal is the time of the calls alone with the capacity always in use. Hand-written versions, and
PyFlink's operator if an environment that has it is named, make the same calls in the same run.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import click

from benchmarks.memory import resident_bytes
from benchmarks.report import Line, Result, benchmark, table
from benchmarks.wait_engine import (
    Way,
    at_once,
    heavy_tail,
    one_queue,
    ours,
    peaks_of,
    seconds,
    semaphore_and_gather,
    ten_ms,
)
from forebay_state_api.calls.policies import Retry

HERE: Final = Path(__file__).parent
ROWS: Final = 10_000
UV: Final = find_spec("uvloop") is not None

GUARDS: Final = {
    "try_timeout": 5.0,
    "timeout": 30.0,
    "retry": Retry(3, 0.1),
    "on_error": lambda _row, _error, _tries: None,
}
PEERS: Final[dict[str, Way]] = {
    "semaphore and gather": semaphore_and_gather,
    "one queue for all": one_queue,
}


class Measured:
    """Runs each subject several times, and holds the lines and the peers' figures."""

    def __init__(self, repeat: int) -> None:
        self.repeat = repeat
        self.lines: list[Line] = []
        self.peers: list[list[str]] = []

    def times(self, way: Way, fn: Any, rows: int, capacity: int, *, uv: bool) -> list[float]:
        """Return the seconds of each run."""
        return [seconds(way, fn, rows, capacity, uv=uv) for _ in range(self.repeat)]

    def per_record(self, what: str, bound: float, **policy: Any) -> None:
        """Measure a function that answers at once, which gives the cost per record."""
        took = self.times(ours(**policy), at_once, 200_000, 100, uv=UV)
        values = [one / 200_000 * 1e6 for one in took]
        self.lines.append(
            Line(what=what, values=values, bound=bound, at_least=False, unit="µs a record")
        )

    def against_ideal(self, what: str, fn: Any, capacity: int, ideal: float, bound: float) -> None:
        """Measure our time divided by the ideal, and the peers' on the same calls."""
        took = self.times(ours(), fn, ROWS, capacity, uv=UV)
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
            plain = statistics.median(self.times(ours(), fn, ROWS, capacity, uv=False))
            self._peer(what, "ours on asyncio's own loop", plain, ideal)
        for name, way in PEERS.items():
            self._peer(what, name, seconds(way, fn, ROWS, capacity, uv=UV), ideal)

    def _peer(self, what: str, name: str, took: float, ideal: float) -> None:
        self.peers.append([what, name, f"{took:.3f}", f"{took / ideal:.2f}"])

    def flink(self, python: str, what: str, capacity: int, ideal: float) -> None:
        """Measure PyFlink's operator with a timeout, in its environment, in turn with ours."""
        ratios, theirs = [], []
        for _ in range(self.repeat):
            found = flink_seconds(python, "peer_flink_wait.py", ROWS, 10, capacity, 30)
            mine = seconds(ours(**GUARDS), ten_ms, ROWS, capacity, uv=UV)
            theirs.append(found["seconds"])
            ratios.append(found["seconds"] / mine)
        median = statistics.median(theirs)
        name = f"PyFlink {found['version']} with a timeout"
        self._peer(what, name, median, ideal)
        self.lines.append(
            Line(
                what=f"{what}: {name} ÷ ours with all guards", values=ratios, bound=3, at_least=True
            )
        )


def flink_seconds(python: str, script: str, *arguments: float) -> Any:
    """Run a script of PyFlink's in its environment; return its seconds and version."""
    command = [python, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def _fresh(rows: int) -> dict[str, int]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(peaks_of, rows, resident_bytes).result()


def memory_line() -> tuple[Line, str]:
    """Measure the peak at a million rows divided by the peak at a hundred thousand."""
    small, large = _fresh(100_000), _fresh(1_000_000)
    mib = [one["bytes"] / 2**20 for one in (large, small)]
    line = Line(
        what="memory, rows of 1 KB, capacity 100, buffer 10,000: 1,000,000 ÷ 100,000 rows",
        values=[large["bytes"] / small["bytes"]],
        bound=1.25,
        at_least=False,
        detail=f"{mib[0]:.0f} / {mib[1]:.0f} MiB at most",
    )
    note = (
        f"While a million rows went through there were at most {large['tasks']} asyncio tasks and "
        f"{large['threads']} threads."
    )
    return line, note


def spark_lines() -> tuple[list[Line], str]:
    """Measure the stream with the HTTP server, and Spark's own time for a micro-batch."""
    command = [sys.executable, "-m", "benchmarks.wait_spark"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=HERE.parent)
    found: Sequence[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    ideal = [one["rows"] / 100 * 0.1 for one in found]
    works = [one["work_s"] for one in found]
    fixed = [one["trigger_s"] - one["work_s"] for one in found]
    line = Line(
        what="Spark, HTTP on loopback, 100 ms a call, capacity 100: ideal ÷ time of the work",
        values=[best / work for best, work in zip(ideal, works, strict=True)],
        bound=0.85,
        at_least=True,
        detail=f"{ideal[0]:.2f} / {statistics.median(works):.2f} s",
    )
    note = (
        f"Spark's own part of a micro-batch was {statistics.median(fixed):.2f} s (median; of the "
        f"first one, which starts the worker, {fixed[0]:.2f} s) in addition to "
        f"{statistics.median(works):.2f} s of work; a call took {found[-1]['p50_s'] * 1e3:.0f} ms "
        f"at 50 % and {found[-1]['p99_s'] * 1e3:.0f} ms at 99 %."
    )
    return [line], note


@benchmark("wait")
@click.option("--repeat", default=5, show_default=True, help="Runs of each subject.")
@click.option("--flink-python", help="A Python that has apache-flink.")
@click.option("--spark/--no-spark", default=True, show_default=True)
def main(*, repeat: int, flink_python: str | None, spark: bool) -> Result:
    """Measure the ordered wait."""
    measured = Measured(repeat)
    measured.per_record("answers at once, bare", 0.5)
    measured.per_record("answers at once, both timeouts, retry, on_error", 3.0, **GUARDS)
    measured.against_ideal("10 ms, capacity 100", ten_ms, 100, 1.0, 1.10)
    measured.against_ideal("10 ms, capacity 1,000", ten_ms, 1_000, 0.1, 1.35)
    measured.against_ideal("1 % of calls 20 times slower, capacity 100", heavy_tail, 100, 1.19, 1.3)
    if flink_python:
        measured.flink(flink_python, "10 ms, capacity 100", 100, 1.0)
        measured.flink(flink_python, "10 ms, capacity 1,000", 1_000, 0.1)
    memory, notes = memory_line()
    lines, remarks = [*measured.lines, memory], [notes]
    if spark:
        more, note = spark_lines()
        lines += more
        remarks.append(note)
    header = ["10,000 calls", "by", "seconds", "÷ ideal"]
    loop = "uvloop" if UV else "asyncio's own loop"
    about = f"On {loop} unless stated otherwise; the hand-written versions ran once. "
    notes = [table(measured.peers, header), about + " ".join(remarks)]
    return Result(lines=lines, notes=notes, data={"peers": measured.peers})


if __name__ == "__main__":
    main()
