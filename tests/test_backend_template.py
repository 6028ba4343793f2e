"""The project in ``examples/backend-template``: it is the reference backend, and passes the kit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .loading import load

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
TEMPLATE = ROOT / "examples" / "backend-template"
script = load(ROOT / "scripts" / "backend_template.py")


def kit():
    """Run the template's tests as its author does; what pytest prints."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=TEMPLATE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_its_backend_is_the_reference():
    written = script.BACKEND.read_text(encoding="utf-8")
    assert written == script.backend(), "run `python scripts/backend_template.py`"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_passes_the_kit():
    assert "passed" in kit()
