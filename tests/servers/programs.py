"""Programs of this project that tests run: jobs and commands."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

FOREBAY = "from forebay_cli.main import main; main()"


@contextlib.contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen]:
    """A program of ours, ended with the block; its errors are in the log."""
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.stdin.close()
            process.terminate()
            process.wait(100)


def address(process, log: Path) -> str:
    """Return the address that a program prints; leave the rest of its output unread."""
    for line in process.stdout:
        if found := re.search(r"https?://127\.0\.0\.1:\d+", line):
            return found[0]
    return pytest.fail(log.read_text())
