"""The kit finds faults: backends that each break the contract in one point."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from .faults import FAULTS, MISSED

pytestmark = pytest.mark.kit

PLANTED = Path(__file__).with_name("planted.py")
ROWS = sorted({fault.row.__name__ for fault in FAULTS.values()})


def run(folder, names, *arguments, **environment):
    """Run planted faults; class of each test → what failed, as text that begins with its kind.

    A ``failure`` breaks the promise of a row; an ``error`` may come from a broken fixture.
    """
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    paths = os.pathsep.join(map(os.path.abspath, sys.path))
    done = subprocess.run(
        [*command, "--tb=native", f"--junitxml={report}", *arguments, PLANTED],
        env={**os.environ, "PYTHONPATH": paths, "KIT_FAULTS": ",".join(names), **environment},
        cwd=PLANTED.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        failed = found.setdefault(case.get("classname").rpartition(".Test")[2], [])
        failed += [
            f"{one.tag}: {case.get('name')}{one.text}"
            for one in (*case.iter("failure"), *case.iter("error"))
        ]
    return found


def broken_promises(failed):
    return [one for one in failed if one.startswith("failure: ")]


@pytest.fixture(scope="module")
def in_their_rows(request, tmp_path_factory):
    """All faults that are asked for, each in the row that is to catch it; and the rows without."""
    asked = [
        item.callspec.params
        for item in request.session.items
        if item.path == request.path and hasattr(item, "callspec")
    ]
    names = {name for params in asked for name in params.values()}
    return run(tmp_path_factory.mktemp("planted"), sorted(names))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_fault_fails_its_row(in_their_rows, fault):
    failed = in_their_rows[fault]
    assert broken_promises(failed), failed or f"{FAULTS[fault].row.__qualname__} has passed"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("row", ROWS)
def test_the_backend_without_a_fault_passes(in_their_rows, row):
    assert in_their_rows[row] == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_whole_kit_catches_them(tmp_path):
    caught = {
        name
        for name in FAULTS
        if any(map(broken_promises, run(tmp_path, [name], "-x", KIT_WHOLE="1").values()))
    }
    assert len(caught) >= 0.95 * len(FAULTS), FAULTS.keys() - caught


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_kit_passes_without_a_fault(tmp_path):
    assert run(tmp_path, ["Whole"], KIT_WHOLE="1") == {"Whole": []}


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", sorted(MISSED))
def test_the_whole_kit_misses_what_is_said_to_be_missed(tmp_path, name):
    """A fault that a new row finds belongs to the others, with that row."""
    assert run(tmp_path, [name], KIT_WHOLE="1") == {name: []}


def test_they_are_as_many_as_authors_are_told():
    page = PLANTED.parents[4] / "docs" / "plugin-authors" / "backend.md"
    assert f"{len(FAULTS)} faults planted" in page.read_text(encoding="utf-8")
