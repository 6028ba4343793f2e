"""An operator of a third party, installed next to ours and found by its name.

By default it is listed; a backend of a third party runs in a job in ``tests/test_third_party.py``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PROJECT = Path(__file__).parents[1] / "third_party_operator"
UV = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Install the third party's project from its wheel into a directory."""
    if UV is None:
        pytest.skip("uv is not installed")
    folder = tmp_path_factory.mktemp("operator")
    project = folder / "project"
    shutil.copytree(PROJECT, project)
    run(UV, "build", "--quiet", "--wheel", "--out-dir", folder, project)
    (wheel,) = folder.glob("*.whl")
    target = folder / "installed"
    run(UV, "pip", "install", "--quiet", "--no-deps", "--target", target, wheel)
    return target


def run(*command, **environment):
    done = subprocess.run(
        [str(part) for part in command],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-8000:]
    return done.stdout


def beside(installed):
    """Return the path with the directory in addition to the existing entries."""
    return os.pathsep.join(filter(None, [str(installed), os.environ.get("PYTHONPATH")]))


@pytest.mark.slow
def test_a_job_finds_it_by_its_name(installed):
    text = run(sys.executable, PROJECT / "measure_names.py", PYTHONPATH=beside(installed))
    assert 'found [["ann", 3], ["catherine", 9]]' in text


def test_it_is_listed(installed):
    program = Path(sys.executable).with_name("forebay")
    text = run(sys.executable, program, "plugins", PYTHONPATH=beside(installed), COLUMNS="200")
    assert "lengths-operator" in text
    assert "lengths" in text
