"""Wheels in a bare environment, with a third party's backend that this repository does not know.

Our packages are built and installed as users get them, with only the dependencies that they
declare. The backend is a project of one file in ``third_party_backend/``.
"""

from __future__ import annotations

import re
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest

from forebay_state_api.contract import CONTRACT_VERSION

from .environments import UV, Environment

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[1]
THIRD_PARTY = Path(__file__).parent / "third_party_backend"
OURS = (
    "state-api",
    "engine",
    "state-processor",
    "cli",
    "testing",
    "backend-heap",
    "spark-runtime",
)


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """An environment with a job's packages, the command line and the third-party backend."""
    if UV is None:
        pytest.skip("uv is not installed")
    environment = Environment(tmp_path_factory.mktemp("bare"))
    for name in OURS:
        environment.build(ROOT / "packages" / name)
    project = environment.folder / "shelf"
    shutil.copytree(THIRD_PARTY, project)
    environment.build(project)
    for name in ("pyspark", "pyarrow", "numpy", "pandas"):  # with their compiled modules
        environment.link(name)
    environment.install(
        "forebay-spark-runtime",
        "forebay-cli",
        "shelf-backend[testing]",
        f"pyspark=={version('pyspark')}",
        f"pyarrow=={version('pyarrow')}",
        f"numpy=={version('numpy')}",
        f"pandas=={version('pandas')}",
    )
    return environment


USERS_TEST = """
from importlib.util import find_spec
from typing import NamedTuple

import pytest

from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor
from forebay_state_api.plugins import plugins
from forebay_testing import FunctionHarness


class Visit(NamedTuple):
    user: str


class Visits(KeyedProcessFunction):
    def open(self, context):
        self.count = context.get_state(ValueStateDescriptor("count", int, default=0))

    async def process_element(self, row, ctx):
        count = await self.count.async_value() + 1
        await self.count.async_update(count)
        yield row.user, count


def test_a_rescale(tmp_path):
    rows = [Visit("ann"), {"user": "ann"}]
    with FunctionHarness(Visits(), key_by="user", state_dir=tmp_path) as harness:
        assert harness.process(rows) == [("ann", 1), ("ann", 2)]
        assert harness.restart(parallelism=3).process(rows) == [("ann", 3), ("ann", 4)]


def test_the_fixture(harness):
    assert harness(Visits(), key_by="user").process([Visit("ann")]) == [("ann", 1)]


NOT_NEEDED = "pyspark pyarrow pandas click rich hypothesis forebay_cli forebay_spark_runtime"


def test_no_plugin_is_broken_without_the_command_line():
    assert plugins().problems() == []


@pytest.mark.parametrize("package", NOT_NEEDED.split())
def test_what_is_not_needed(package):
    assert find_spec(package) is None
"""


def test_functions_are_tested_without_spark(bare, tmp_path):
    environment = Environment(tmp_path, bare.wheels)
    environment.install("forebay-testing", "forebay-backend-heap", "shelf-backend", "pytest")
    (tmp_path / "test_visits.py").write_text(USERS_TEST)
    text = environment.run("-m", "pytest", "-q", "-W", "error", "test_visits.py")
    assert "12 passed" in text


AUTHORS = """
from importlib.metadata import distributions, entry_points
from forebay_state_api.plugins import plugins

print(plugins().backend("shelf").name, *(one.metadata["name"] for one in distributions()))
assert not entry_points(group="pytest11")
"""


def test_an_authors_backend_brings_the_api_and_nothing_else_of_ours(bare, tmp_path):
    environment = Environment(tmp_path, bare.wheels)
    environment.install("shelf-backend")
    name, *found = environment.run("-c", AUTHORS).split()
    assert name == "shelf"
    assert {one for one in found if one.startswith("forebay")} == {"forebay-state-api"}
    assert not {"click", "rich", "hypothesis", "pytest", "pyarrow"} & set(found)


def test_what_is_installed(bare):
    text = bare.run("plugins", command="forebay")
    assert "shelf-backend" in text
    assert "1.2.3" in text
    assert "forebay-backend-heap" in text  # an install dependency, so that a default works
    where = bare.run("-c", "import forebay_state_api as api; print(api.__file__)")
    assert str(bare.folder) in where


def another_python(folder):
    """Make a ``python3`` that does not work; return its folder."""
    folder.mkdir()
    (folder / "python3").write_text("#!/bin/sh\necho another python >&2\nexit 3\n")
    (folder / "python3").chmod(0o755)
    return folder


def test_a_job_that_names_the_backend_and_its_restarts(bare, tmp_path):
    """Started as editors and notebooks do: its environment is not activated."""
    job = [THIRD_PARTY / "count_users.py", tmp_path, "shelf", "heap", "shelf"]
    said = bare.run(*job, first=another_python(tmp_path / "programs"))
    assert 'shelf found [["ann", 1], ["bob", 1]]' in said
    assert "heap failed" in said
    assert "made by the backend 'shelf', and this query asks for 'heap'" in said
    assert 'found [["ann", 1], ["ann", 2], ["ann", 3], ["bob", 1], ["bob", 2], ["bob", 3]]' in said
    assert list((tmp_path / "state").glob("*/counts/data/*/shelf-*"))


SOME_ROWS = (
    "(commit or version or look_up or owns or a_scan_yields or an_export_needs or a_difference)"
    " and not every_object and not model and not a_write_that_fails"
)


@pytest.mark.parametrize(
    "rows", [SOME_ROWS, pytest.param("Test", marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_the_conformance_kit_passes(bare, rows):
    """By default some rows; our own backends run all."""
    settings = bare.folder / "pytest.ini"  # instead of this repository's
    settings.write_text("[pytest]\n")
    text = bare.run(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", settings, "-k", rows),
        *("--rootdir", THIRD_PARTY, THIRD_PARTY / "test_shelf_backend.py"),
    )
    passed = int(re.search(r"(\d+) passed", text)[1])
    assert passed > (25 if rows == SOME_ROWS else 700)
    assert "failed" not in text


SHELF = "from forebay_state_api.plugins import plugins; plugins().backend('shelf')"
HEAP = "from forebay_state_api.plugins import plugins; print(plugins().backend('heap').name)"


def test_a_plugin_of_another_contract_is_said_to_who_uses_it(bare):
    project = bare.folder / "other contract"
    shutil.copytree(THIRD_PARTY, project)
    backend = project / "shelf_backend.py"
    own = f"[int] = {CONTRACT_VERSION}\n"
    assert own in backend.read_text()
    backend.write_text(backend.read_text().replace(own, "[int] = 99\n", 1))
    settings = project / "pyproject.toml"
    settings.write_text(settings.read_text().replace('"1.2.3"', '"99.0"'))
    bare.build(project)
    bare.install("shelf-backend==99.0")
    try:
        text = bare.run("-c", SHELF, check=False)
        assert bare.run("-c", HEAP) == "heap\n"
        # Help asks plugins for their commands alone: it imports no backend.
        assert "shelf-backend" not in bare.run("--help", command="forebay")
        assert "BROKEN" in bare.run("plugins", command="forebay", check=False)
    finally:
        bare.install("shelf-backend==1.2.3")
    assert "PluginError" in text
    assert "shelf-backend 99.0" in text
    assert "99" in text.split("PluginError")[-1]
    assert "contract" in text


def test_an_absent_plugin_is_said_with_the_line_that_brings_it(bare):
    bare.uninstall("forebay-backend-heap")
    backend = "from forebay_state_api.plugins import plugins; plugins().backend('heap')"
    try:
        text = bare.run("-c", backend, check=False)
    finally:
        bare.install("forebay-backend-heap")
    assert "UnknownPluginError" in text
    assert "pip install forebay-backend-heap" in text
    assert "shelf" in text
