"""The console's pages of a large operator: ``python -m benchmarks.console_pages``.

10,000 versions of one subtask, or 100 versions of 50, are stored in a local directory, with 10,000
key groups. Each page is asked for when what the console knows is too old to be shown, and after
another version was stored. CPU is that of the console's process.
"""

from __future__ import annotations

import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple
from urllib.request import urlopen

import attrs
import click

from benchmarks.console_process import console
from benchmarks.cpu_by_process import TICKS_PER_S
from benchmarks.machine import ForeignLoad
from benchmarks.processes import processes
from benchmarks.report import Line, Result, benchmark
from forebay_engine.versions import OperatorStorage
from forebay_engine.versions.format.layout import Coordinates
from forebay_engine.versions.format.manifest import Manifest, put_manifest
from forebay_engine.versions.format.markers import put_marker
from forebay_state_api.contract.file_names import data_name
from forebay_state_api.contract.files import StateFile
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.keys import key_group_range_of
from forebay_state_api.storage.opening import open_storage

FOLDER: Final = "query/op"
OPERATOR: Final = f"/operators/{FOLDER}"
PATHS: Final = {
    "overview": "/",
    "timeline": OPERATOR,
    "timeline of 1,000 versions": f"{OPERATOR}?last=1000",
    "key groups": f"{OPERATOR}/groups",
    "files": f"{OPERATOR}/files",
    "/metrics": "/metrics",
}
GROUPS: Final = 10_000
FILES: Final = 8
PAGE_S: Final = 1.0
CPU_S: Final = 0.5
REFRESH_S: Final = 0.5
BETWEEN_S: Final = 3.0
"""The console reads again once it is idle four times as long as the last reading took."""


@attrs.frozen
class Shape:
    """The stored operator."""

    versions: int
    parallelism: int

    def __str__(self) -> str:
        """Name it in the table."""
        return f"{self.versions:,} versions of {self.parallelism}"


SHAPES: Final = (Shape(10_000, 1), Shape(100, 50))


def made(shape: Shape, version: int, subtask: int) -> Coordinates:
    """Return the coordinates of a subtask's version."""
    return Coordinates(
        version=version,
        max_parallelism=GROUPS,
        parallelism=shape.parallelism,
        subtask=subtask,
        range=key_group_range_of(subtask, shape.parallelism, GROUPS),
        epoch=1,
        run_key="0123456789abcdef",
        attempt_id=version,
        random_id=f"{version:024x}",
    )


def put(storage: ObjectStorage, shape: Shape, version: int, subtask: int) -> None:
    """Store the marker and the manifest of a subtask's version."""
    by = made(shape, version, subtask)
    put_marker(storage, by)
    ages = range(max(0, version - FILES), version)
    manifest = Manifest(
        made=by,
        uid="op",
        backend="heap",
        parents=[],
        opened_version=version - 1,
        now_us=0,
        files=[StateFile(name=data_name(age, "x"), size=10**6, range=by.range) for age in ages],
        meta={},
        protected=(),
        descriptions={},
        operator_state={},
        metrics={
            "group_rows": [group % 97 for group in by.range],
            "bytes_total": 10**9,
            "rows_in": 10**6,
            "phase_seconds": {"input": 3.0, "function": 2.0, "commit_files": 0.3},
        },
        batch_ms=1_000,
    )
    put_manifest(storage, manifest)


class Took(NamedTuple):
    """The cost of one page."""

    seconds: float
    """Until it has arrived."""
    cpu_s: float


def page(address: str, pid: int, path: str) -> Took:
    """Ask for a page."""
    used, started = processes()[pid].used, time.perf_counter()
    with urlopen(address + path, timeout=100) as answer:
        answer.read()
    seconds = time.perf_counter() - started
    return Took(seconds, (processes()[pid].used - used) / TICKS_PER_S)


def measured(shape: Shape, rounds: int) -> dict[str, list[Took]]:
    """Store an operator and ask for the pages of a console that has just started, and later."""
    with tempfile.TemporaryDirectory(prefix="pages-") as folder:
        storage = OperatorStorage(open_storage(folder), FOLDER)
        versions = count(1)

        def commit() -> None:
            version = next(versions)
            for subtask in range(shape.parallelism):
                put(storage, shape, version, subtask)

        for _ in range(shape.versions):
            commit()
        with console(Path(folder), REFRESH_S) as (address, pid):
            took: dict[str, list[Took]] = {name: [] for name in PATHS}
            for _ in range(rounds):
                for name, path in PATHS.items():
                    commit()
                    took[name].append(page(address, pid, path))
                    time.sleep(BETWEEN_S)
    return took


def lines_of(shape: Shape, rounds: int) -> list[Line]:
    """Return the time and the CPU time of each page."""
    lines = []
    for name, took in measured(shape, rounds).items():
        what = f"{shape}, {GROUPS:,} key groups: {name}"
        for found, values, bound in (
            (what, [one.seconds for one in took], PAGE_S),
            (f"{what}, CPU", [one.cpu_s for one in took], CPU_S),
        ):
            detail = f"the slowest {max(values):.2f} s, the first {values[0]:.2f} s"
            lines.append(
                Line(
                    what=found, values=values, bound=bound, at_least=False, unit="s", detail=detail
                )
            )
    return lines


@benchmark("console-pages")
@click.option("--rounds", default=5, show_default=True, help="How often each page is asked for.")
def main(*, rounds: int) -> Result:
    """Measure how long pages take."""
    with ForeignLoad() as load:
        lines = [line for shape in SHAPES for line in lines_of(shape, rounds)]
    others = f"Other processes used {load.cores:.2f} cores." if load.cores is not None else ""
    return Result(lines=lines, notes=[*filter(None, [others])])


if __name__ == "__main__":
    main()
