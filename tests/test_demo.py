"""``forebay demo`` as a user runs it: started, rescaled and killed; no process keeps running."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from forebay_spark_runtime.demo.directory import DemoDirectory

pytestmark = pytest.mark.spark

KILLED = r"Killed with SIGKILL during version [23]: .*; \d task attempt\(s\) lost"
"""Of a moment that chance decides; ``tests/demo/test_kill.py`` of the package decides it."""


def demo(directory: Path, *options: str) -> str:
    code = "from forebay_state_api.commands.main import main; main()"
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
def test_the_demo_restores_rescales_survives_kills_and_leaves_nothing_running(tmp_path):
    directory = tmp_path / "demo"
    first = demo(directory, "--months", "1")
    assert "Jan 2013: 27,004 flights" in first
    assert "Checked: the 804 rows of the result" in first
    assert "Restored" not in first

    second = demo(directory, "--months", "2", "--parallelism", "3", "--kill", "--console")
    assert "Restored version 1: 3,141 aircraft" in second
    assert "the state of 2 subtask(s) is opened by 3" in second
    assert "Watch it in the browser: http://127.0.0.1:" in second
    assert "Mar 2013: 28,834 flights" in second
    assert re.search(rf"{KILLED}|No kill hit a worker that was making a version", second)
    assert "the 2,479 rows of the result" in second
    assert DemoDirectory(directory).months_done == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo"]
    listed = subprocess.run(
        ["ps", "-A", "-o", "args="], check=False, capture_output=True, text=True
    )
    assert str(directory) not in listed.stdout
