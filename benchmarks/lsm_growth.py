"""State that is updated a thousand times: ``python -m benchmarks.lsm_growth`` (a minute).

Measures the lsm backend alone, on local files, with the local compaction service, without Spark.
Each version updates random keys of a fixed set. The figures are the size of a version's files, the
number of runs that a read may have to search, and the time of the thousandth commit compared with
the tenth.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from typing import Final

import attrs
import click

from benchmarks.lsm_state import Served, State
from benchmarks.report import Line, benchmark
from forebay_backend_lsm.layers import layers_of

AROUND: Final = 10
"""Number of commits, around the tenth and at the end, whose median is taken."""


@attrs.define
class Course:
    """The figures after each version."""

    seconds: list[float] = attrs.field(factory=list)
    runs: list[int] = attrs.field(factory=list)
    sizes: list[int] = attrs.field(factory=list)
    written: int = 0
    """Total bytes written by the commits, including commits that had to compact."""


def grow(state: Served, keys: int, changed: int, versions: int, pause_s: float) -> Course:
    """Write all keys, then update some in each version."""
    chance = random.Random(1)
    course = Course()
    state.commit(range(keys))
    for _ in range(versions):
        numbers = chance.sample(range(keys), changed)
        course.seconds.append(state.commit(numbers))
        course.runs.append(len(layers_of(state.state.files)))
        course.sizes.append(sum(file.size for file in state.state.files))
        course.written += state.state.bytes_written
        time.sleep(pause_s)  # the rest of a micro-batch
    return course


def lines(course: Course, live: int) -> list[Line]:
    """Return the measured lines with their targets."""
    early = statistics.median(course.seconds[:AROUND])
    late = [seconds / early for seconds in course.seconds[-AROUND:]]
    detail = f"{1e3 * statistics.median(course.seconds[-AROUND:]):.1f} / {1e3 * early:.1f} ms"
    space = [size / live for size in course.sizes]
    return [
        Line(
            what="bytes of the last version over those of its live entries",
            values=[space[-1]],
            bound=2.0,
            at_least=False,
            detail=f"at most {max(space):.2f}, mean {statistics.mean(space):.2f}",
        ),
        Line(
            what="runs on a read path, at most",
            values=[float(max(course.runs))],
            bound=10.0,
            at_least=False,
            unit="runs",
            detail=f"mean {statistics.mean(course.runs):.1f}",
        ),
        Line(
            what="the last commits over the first ones",
            values=late,
            bound=1.5,
            at_least=False,
            detail=detail,
        ),
    ]


@benchmark("lsm-growth")
@click.option("--keys", default=100_000, show_default=True)
@click.option("--changed", default=1_000, show_default=True, help="Keys updated by a version.")
@click.option("--versions", default=1_000, show_default=True)
@click.option("--pause", default=0.02, show_default=True, help="Seconds between two commits.")
def main(*, keys: int, changed: int, versions: int, pause: float) -> list[Line]:
    """Measure the growth of a state."""
    with tempfile.TemporaryDirectory() as folder:
        alone = State(f"{folder}/alone")
        alone.commit(range(keys))
        live = sum(file.size for file in alone.state.files)
        state = Served(f"{folder}/state")
        course = grow(state, keys, changed, versions, pause)
        state.service.close()
    return lines(course, live)


if __name__ == "__main__":
    main()
