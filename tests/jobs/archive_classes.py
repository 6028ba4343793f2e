"""Makes an archive of the classes that Spark loads, which JVMs map instead of loading them.

Loading Spark's classes takes a JVM longer than most tests take otherwise. The argument is the file
to make, which is written atomically. The archive has the classes that ``counting.py`` needs.
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
        # The JVM writes it when it ends, after the driver; until then it holds a pipe open.
        done = subprocess.run(
            [sys.executable, str(Path(__file__).parent / "driver.py")],
            input=json.dumps({"job": "counting", "folder": name}),
            env={**os.environ, "JAVA_TOOL_OPTIONS": options},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.stdout.strip() != "null" or not made.exists():
            sys.exit(f"{done.stdout}\n{done.stderr}")
        made.replace(archive)


if __name__ == "__main__":
    main()
