"""A console as a process of its own, for the benchmarks that look at one."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

FOREBAY: Final = "from forebay_cli.main import main; main()"


@contextlib.contextmanager
def console(state_dir: Path, refresh_s: float) -> Iterator[tuple[str, int]]:
    """Run ``forebay console`` on a free port; yield its address and its process id."""
    command = ["console", "--state-dir", str(state_dir), "--port", "0"]
    command += ["--refresh", str(refresh_s)]
    with subprocess.Popen(
        [sys.executable, "-c", FOREBAY, *command], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            address = re.search(r"http://127\.0\.0\.1:\d+", line)
            if address is None:
                raise click.ClickException(f"the console did not start: {line}")
            yield address[0], process.pid
        finally:
            process.terminate()
