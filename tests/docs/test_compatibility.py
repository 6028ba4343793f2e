"""The README's compatibility table agrees with the metadata of the packages."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from forebay_state_api.contract import CONTRACT_VERSION, SERVED_VERSIONS

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"\| (forebay-\S+) \| ([\d.]+) \| ([^|]+) \| ([^|]+) \| ([\d, ]+) \|")
NUMBER = re.compile(r"3\.\d+")
PROJECTS = {
    project["name"]: project
    for file in ROOT.glob("packages/*/pyproject.toml")
    for project in [tomllib.loads(file.read_text(encoding="utf-8"))["project"]]
}


def table():
    """Return package → its rows: version, Pythons, pyspark, contract."""
    rows = {}
    for name, *cells in ROW.findall((ROOT / "README.md").read_text(encoding="utf-8")):
        rows.setdefault(name, []).append([cell.strip() for cell in cells])
    return rows


def pythons(cell):
    """Return the single versions in ``3.11 to 3.13`` or ``3.12, 3.13``."""
    first, *rest = NUMBER.findall(cell)
    if " to " not in cell:
        return [first, *rest]
    low, high = (int(one.partition(".")[2]) for one in (first, rest[-1]))
    return [f"3.{minor}" for minor in range(low, high + 1)]


def test_every_package_has_its_row():
    assert table().keys() == PROJECTS.keys()


@pytest.mark.parametrize("name", PROJECTS)
def test_a_row_says_what_the_package_declares(name):
    project, rows = PROJECTS[name], table()[name]
    assert {row[0] for row in rows} == {".".join(project["version"].split(".")[:2])}
    versions = SERVED_VERSIONS if name == "forebay-state-api" else [CONTRACT_VERSION]
    assert {row[3] for row in rows} == {", ".join(map(str, sorted(versions)))}
    declared = [NUMBER.search(one)[0] for one in project["classifiers"] if NUMBER.search(one)]
    assert [python for row in rows for python in pythons(row[1])] == declared
    assert project["requires-python"] == f">={declared[0]}"


@pytest.mark.parametrize("name", PROJECTS)
def test_lowest_versions_have_wheels_on_the_newest_python(name):
    """The lowest versions for older Pythons have no wheels there."""
    newer = {"msgpack>=1.0.8": "msgpack>=1.1", "numpy>=1.26": "numpy>=2.1"}
    newer["xxhash>=3.4.1"] = "xxhash>=3.5"
    declared = PROJECTS[name]["dependencies"]
    for older in newer.keys() & set(declared):
        assert f"{newer[older]} ; python_full_version >= '3.13'" in declared


def test_the_versions_of_pyspark():
    said = [row[2] for row in table()["forebay-spark-runtime"]]
    lowest, newest = (re.findall(r"\d+\.\d+", said[0])[index] for index in (0, -1))
    major, minor = map(int, newest.split("."))
    declared = [
        one
        for one in PROJECTS["forebay-spark-runtime"]["dependencies"]
        if one.startswith("pyspark")
    ]
    assert declared == [f"pyspark[sql]>={lowest},<{major}.{minor + 1}"]
    assert all(cell.endswith(f"to {newest}") for cell in said)
    others = (rows for name, rows in table().items() if name != "forebay-spark-runtime")
    assert {row[2] for rows in others for row in rows} == {"not needed"}
