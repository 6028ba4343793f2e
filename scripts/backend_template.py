"""Write the backend of ``examples/backend-template`` from the reference backend of the kit.

The template is a project to copy: a backend of its own that passes the kit as it is.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
REFERENCE: Final = ROOT / "packages/testing/src/forebay_testing/reference.py"
BACKEND: Final = ROOT / "examples/backend-template/src/forebay_backend_acme/backend.py"
_HEAD: Final = '''"""`AcmeBackend`: the smallest backend that fulfils the contract. Make it yours.

Its tables are not resident: the engine holds the cells that a micro-batch has touched, and reads
the rest with `get_many`, `get_entries` and `Scan.pages`, on worker threads. Each commit with
changes writes the whole range as one sealed object, which is simple and slow.
"""
'''


def backend() -> str:
    """Return the source of the template's backend."""
    source = REFERENCE.read_text(encoding="utf-8")
    body = source[source.index("from __future__") :]
    for old, new in (("Reference", "Acme"), ('"reference"', '"acme"')):
        body = body.replace(old, new)
    body = re.sub(r"\n__all__ = .*\n", "", body)
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--stdin-filename", BACKEND.name, "-"],
        input=f"{_HEAD}\n{body}",
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


if __name__ == "__main__":
    BACKEND.write_text(backend(), encoding="utf-8")
