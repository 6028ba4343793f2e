"""Executors with other packages than the driver."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import requires, version
from pathlib import Path

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OURS = ("state-api", "engine", "state-processor", "backend-heap", "backend-lsm", "spark-runtime")
UV = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
COUNTS = sorted(
    [["ann", n] for n in (1, 2, 3, 4)]
    + [["bob", 1], ["bob", 2], ["cy", 1], ["cy", 2], ["dee", 1], ["eve", 1]]
)


def dependencies():
    """Return the dependencies of our packages, without one another and without extras."""
    declared = [one for name in OURS for one in requires(f"forebay-{name}")]
    names = {re.match(r"[\w.-]+", one)[0] for one in declared if "extra ==" not in one}
    return sorted(name for name in names - {"pyspark"} if not name.startswith("forebay"))


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
    # Spark's own workers need the last two.
    pins = [f"{name}=={version(name)}" for name in (*dependencies(), "numpy", "pandas")]
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


def test_wheels_alone(run_on_cluster, needed, wheels, tmp_path):
    """``--py-files``: wheels with the suffix that Spark puts on the path, plugins among them."""
    files = []
    for wheel in wheels:
        files.append(tmp_path / f"{wheel.stem}.zip")
        shutil.copy(wheel, files[-1])
    lines = run_on_cluster(
        "count.py",
        tmp_path / "work",
        "lsm",
        conf={"spark.submit.pyFiles": ",".join(map(str, files))},
        environment={"PYSPARK_PYTHON": str(needed / "bin" / "python"), "PYTHONPATH": ""},
    )
    found = found_in(lines)
    assert found["counts"] == COUNTS
    assert all(".zip/forebay_state_api" in where for where in found["where"]), found["where"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount and change its uid")
def test_a_user_without_name_or_home_on_a_read_only_root(run_on_cluster):
    """As in a hardened container; and a warning in a worker is an error."""
    place = Path(tempfile.mkdtemp(prefix="forebay-cluster-"))
    python = place / "python"
    python.write_text(
        "#!/bin/sh\n"
        "exec unshare --mount sh -c '\n"
        "  mount --rbind / / && mount --bind /tmp /tmp && mount -o remount,ro,bind / || exit 9\n"
        "  exec setpriv --reuid=54321 --regid=54321 --clear-groups \\\n"
        '    --inh-caps=+dac_read_search --ambient-caps=+dac_read_search "$@"\n'
        "' wrapper env -u HOME -u USER -u LOGNAME PYTHONWARNINGS=error "
        f'{sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    for folder in (place, place / "work"):
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)
    try:
        lines = run_on_cluster(
            "count.py",
            place / "work",
            "lsm",
            environment={"PYSPARK_PYTHON": str(python)},
        )
    finally:
        shutil.rmtree(place)
    assert found_in(lines)["counts"] == COUNTS


@pytest.mark.parametrize(
    ("side", "says"),
    [
        (
            "client",
            "forebay_spark_runtime is not installed for the Python that Spark's workers",
        ),
        ("server", "No module named 'forebay_spark_runtime'"),
    ],
)
def test_connect_with_the_packages_on_one_side_alone(run_on_cluster, needed, tmp_path, side, says):
    """Both sides need them: the error says which package is missing, and where."""
    environment = {"PYTHONPATH": "", "SPARK_TESTING": "1"}
    if side == "client":
        environment["PYSPARK_PYTHON"] = str(needed / "bin" / "python")
    lines = run_on_cluster("connect_one_side.py", tmp_path / "work", side, environment=environment)
    assert says in found_in(lines)["error"]
