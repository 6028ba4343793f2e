"""Each package's wheel, alone in an environment, runs what its README shows.

It is installed by the first ``pip install`` of its README, with the dependencies that it declares;
all of ours are wheels, as they are published.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest

from .docs.test_blocks import program
from .environments import Environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[1]
PACKAGES = sorted(path.name for path in (ROOT / "packages").iterdir() if path.is_dir())
INSTALL = re.compile(r"^pip install ([^#\n]+)", re.MULTILINE)
COMPILED = ("pyspark", "pyarrow", "numpy", "pandas")
"""Packages that are linked instead of built or unpacked again, where a job needs them."""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Build all wheels; return their folder."""
    environment = Environment(tmp_path_factory.mktemp("built"))
    for name in PACKAGES:
        environment.build(ROOT / "packages" / name)
    return environment.wheels


def asked_by(page, name):
    """Return the requirements of the first ``pip install`` of a README."""
    found = INSTALL.search(page.read_text(encoding="utf-8"))
    return [one.strip("'") for one in found[1].split()] if found else [f"forebay-{name}"]


@pytest.mark.parametrize("name", PACKAGES)
def test_a_wheel_alone_runs_its_readme(wheels, tmp_path, name):
    page = ROOT / "packages" / name / "README.md"
    environment = Environment(tmp_path, wheels)
    asked = asked_by(page, name)
    if name == "spark-runtime":
        for compiled in COMPILED:
            environment.link(compiled)
        asked += [f"{compiled}=={version(compiled)}" for compiled in COMPILED]
    environment.install(*asked)
    script = tmp_path / "readme.py"
    script.write_text(program(page), encoding="utf-8")
    environment.run(script)
    if name == "cli":  # its README has commands and no Python
        assert "forebay-cli" in environment.run("plugins", command="forebay")
