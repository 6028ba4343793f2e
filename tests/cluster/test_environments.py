"""Executors with other packages than the driver."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OURS = ("state-api", "backend-heap", "backend-lsm", "spark-runtime")
UV = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
COUNTS = sorted(
    [["ann", n] for n in (1, 2, 3, 4)]
    + [["bob", 1], ["bob", 2], ["cy", 1], ["cy", 2], ["dee", 1], ["eve", 1]]
)
NEEDED = ("attrs", "click", "msgpack", "numpy", "obstore", "pandas", "pluggy", "pyarrow", "rich")


def uv(*arguments):
    if UV is None:
        pytest.fail("uv is not installed: `./run` and tox bring it")
    subprocess.run([UV, *map(str, arguments)], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Build our packages as they are published."""
    folder = tmp_path_factory.mktemp("wheels")
    for name in OURS:
        uv("build", "--quiet", "--wheel", "--out-dir", folder, ROOT / "packages" / name)
    return sorted(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def needed(tmp_path_factory):
    """Make a Python with the dependencies of our packages, but without them and pyspark."""
    folder = tmp_path_factory.mktemp("needed") / "venv"
    uv("venv", "--quiet", "--relocatable", "--python", sys.executable, folder)
    pins = [f"{name}=={version(name)}" for name in (*NEEDED, "xxhash")]
    uv("pip", "install", "--quiet", "--python", folder / "bin" / "python", *pins)
    return folder


def found_in(lines):
    (line,) = [line for line in lines if line.startswith("FOUND ")]
    return json.loads(line.removeprefix("FOUND "))


def test_a_packed_environment(run_on_cluster, needed, wheels, tmp_path):
    """``--archives``: each executor unpacks it into its own directory and runs its Python."""
    packed = tmp_path / "environment"
    shutil.copytree(needed, packed, symlinks=True)
    uv("pip", "install", "--quiet", "--no-deps", "--python", packed / "bin" / "python", *wheels)
    with tarfile.open(tmp_path / "environment.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(packed, arcname=".")
    shutil.rmtree(packed)
    lines = run_on_cluster(
        "count.py",
        tmp_path / "work",
        conf={"spark.archives": f"{tmp_path / 'environment.tar.gz'}#environment"},
        environment={"PYSPARK_PYTHON": "./environment/bin/python", "PYTHONPATH": ""},
    )
    found = found_in(lines)
    assert found["counts"] == COUNTS
    assert all("/environment/lib/" in where for where in found["where"]), found["where"]
