"""The progress of long commands: a line on a terminal, nothing in a pipe."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.long

STAGES = """
from forebay_cli.output.progress import shown_progress
with shown_progress() as progress:
    progress.stage("reading manifests", 1_234)
    progress.advance()
    progress.stage("checking files")
    progress.advance(7)
print("done")
"""
PATIENCE_S = 100


def run_on_terminal(*command: str, **environment: str) -> tuple[str, str]:
    """Run a command whose stderr is a terminal; return its stdout and what the terminal got."""
    leader, follower = os.openpty()
    variables = {**os.environ, "TERM": "xterm", "COLUMNS": "100", **environment}
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "CI"):
        if name not in environment:
            variables.pop(name, None)
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=follower,
        env=variables,
        check=True,
        timeout=PATIENCE_S,
    )
    os.close(follower)
    shown = b""
    while part := _read(leader):
        shown += part
    os.close(leader)
    return done.stdout.decode(), shown.decode()


def _read(leader: int) -> bytes:
    try:
        return os.read(leader, 65_536)
    except OSError:  # Linux, at the end
        return b""


def test_a_terminal_shows_each_stage_and_is_clean_afterwards():
    printed, shown = run_on_terminal(sys.executable, "-c", STAGES)
    assert printed == "done\n"
    assert "reading manifests" in shown
    assert "of 1,234" in shown
    assert "checking files" in shown
    assert shown.endswith("\x1b[2K"), "the line is erased at the end"


def test_a_terminal_without_colour():
    _, shown = run_on_terminal(sys.executable, "-c", STAGES, NO_COLOR="1")
    assert "reading manifests" in shown
    assert "\x1b[3" not in shown, "no foreground colours"


def test_a_pipe_gets_nothing():
    done = subprocess.run(
        [sys.executable, "-c", STAGES], capture_output=True, check=True, timeout=PATIENCE_S
    )
    assert (done.stdout, done.stderr) == (b"done\n", b"")
