"""The kit for compaction services passes on the local one, and finds planted faults."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from forebay_engine.compaction.local_service import LocalCompactionService
from forebay_testing import CompactionServiceTests

from .service_faults import FAULTS

pytestmark = pytest.mark.kit


class TestLocal(CompactionServiceTests):
    @pytest.fixture
    def service_class(self):
        return LocalCompactionService


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    """Name of a fault → what has failed in its row."""
    report = tmp_path_factory.mktemp("planted") / "report.xml"
    planted = Path(__file__).with_name("planted.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    subprocess.run(
        [*command, f"--junitxml={report}", planted],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        cwd=planted.parent,
        capture_output=True,
        check=False,
    )
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        name = case.get("classname").rpartition(".Test")[2]
        found.setdefault(name, []).extend(one.tag for one in case)
    return found


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_fault_fails_its_row(failed, name):
    assert "failure" in failed[name], failed[name]
