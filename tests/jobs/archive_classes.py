"""Leaves an archive of the classes that Spark loads, which JVMs map instead of loading them again.

A JVM takes longer to load Spark's classes than most tests take otherwise. Its argument is the file
to make, which appears whole or not at all. What is archived is what ``counting.py`` needs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

BATCHES = 3


def main():
    archive = Path(sys.argv[1])
    with tempfile.TemporaryDirectory(dir=archive.parent) as name:
        folder = Path(name)
        (folder / "input").mkdir()
        for number in range(BATCHES):
            rows = [json.dumps({"user": f"user{n}"}) for n in range(9)]
            (folder / "input" / f"{number}.json").write_text("\n".join(rows))
        made = folder / archive.name
        options = f"{os.environ['JAVA_TOOL_OPTIONS']} -XX:ArchiveClassesAtExit={made}"
        told = json.dumps({"master": "local[2]", "folder": name})
        # The JVM leaves it at its end, after the driver's; until then it has the pipe open.
        subprocess.run(
            [sys.executable, str(Path(__file__).parent / "counting.py"), told],
            env={**os.environ, "JAVA_TOOL_OPTIONS": options},
            stdout=subprocess.PIPE,
            check=True,
        )
        made.replace(archive)


if __name__ == "__main__":
    main()
