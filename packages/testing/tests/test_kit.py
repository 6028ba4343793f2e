"""The structure of the kit and its messages; ``kit_faults`` tests the faults that it finds."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from forebay_testing import backends as conformance

pytestmark = pytest.mark.long


def test_ten_lines_are_enough(tmp_path):
    """A third party's file: it is collected, passes, and says what was promised where it fails."""
    (tmp_path / "test_mine.py").write_text(
        "import pytest\n"
        "from forebay_testing import StateBackendTests\n"
        "from forebay_testing.reference import ReferenceBackend as MyBackend\n"
        "class TestMyBackend(StateBackendTests):\n"
        "    @pytest.fixture\n"
        "    def backend_class(self):\n"
        "        return MyBackend\n"
        "class TestNothing(StateBackendTests):\n"
        "    pass\n"
        "class Forgetful(MyBackend):\n"
        "    contract_version = 2\n"
        "    def commit(self, version):\n"
        "        self._tables.clear()\n"
        "        return super().commit(version)\n"
        "class TestForgetful(TestMyBackend):\n"
        "    @pytest.fixture\n"
        "    def backend_class(self):\n"
        "        return Forgetful\n"
    )
    chosen = "class_says or what_was_last_stored"
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, tmp_path],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
    )
    assert "TestNothing has to override the fixture backend_class" in result.stdout
    assert "2 failed, 4 passed" in result.stdout, result.stdout
    assert "3 errors" in result.stdout
    assert "a value is what was last stored [tight]\n(KindTests: The operations" in result.stdout
    assert "batch 1: 'k': v.value() -> [(0, [None])]\n" in result.stdout


TESTS = conformance.StateBackendTests


def parts():
    return {part for part in TESTS.__mro__ if any(name.startswith("test_") for name in vars(part))}


def test_every_part_is_in_the_whole():
    found = {
        value
        for module in conformance._PARTS
        for name, value in vars(sys.modules[f"{conformance.__name__}.{module}"]).items()
        if name.endswith("Tests") and isinstance(value, type)
    }
    assert found == parts()


def test_no_test_hides_another_of_the_same_name():
    names = [name for part in parts() for name in vars(part) if name.startswith("test_")]
    assert len(names) == len(set(names))
    assert len(names) > 150
