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
    printed = outcome(tmp_path, "class_says or what_was_last_stored")
    assert "TestNothing has to override the fixture backend_class" in printed
    assert "2 failed, 4 passed" in printed, printed
    assert "3 errors" in printed
    assert "a value is what was last stored [tight]\n(KindTests: The operations" in printed
    assert "batch 1: 'k': v.value() -> [(0, [None])]\n" in printed


def test_a_damage_that_memory_may_hide_says_what_to_override(tmp_path):
    """The three lines of the docs, for a backend that keeps copies in the process."""
    (tmp_path / "test_mine.py").write_text(
        "import pytest\n"
        "from forebay_backend_heap import HeapBackend\n"
        "from forebay_testing import StateBackendTests\n"
        "class TestMyBackend(StateBackendTests):\n"
        "    @pytest.fixture\n"
        "    def backend_class(self):\n"
        "        return HeapBackend\n"
        "    @pytest.fixture\n"
        "    def backend_options(self):\n"
        "        return {'held-bytes': 0}\n"
        "class TestOverrides(TestMyBackend):\n"
        "    @pytest.fixture\n"
        "    def forget(self):\n"
        "        return lambda: None\n"
    )
    printed = outcome(tmp_path, "found and altered")
    before, without, with_own = printed.split("test_damaged_files_are_found[altered] _")
    assert "2 failed" in with_own, printed
    assert "DID NOT RAISE CorruptStateError" in without
    assert "- advice -" in without
    assert "does not override the fixture forget" in without
    assert "advice" not in before + with_own


def test_what_is_not_claimed_is_listed_and_objects_of_no_bytes_are_left_alone(tmp_path):
    """A backend that writes an empty object in each commit, and keeps a promise less."""
    (tmp_path / "test_mine.py").write_text(
        "import attrs, pytest\n"
        "from forebay_state_api.contract.file_names import data_name\n"
        "from forebay_testing import StateBackendTests\n"
        "from forebay_testing.reference import ReferenceBackend\n"
        "class WithMarks(ReferenceBackend):\n"
        "    contract_version = 2\n"
        "    def commit(self, version):\n"
        "        mark = data_name(version, 'mark')\n"
        "        self._opening.storage.put(mark, b'')\n"
        "        return attrs.evolve(super().commit(version), protected=[mark])\n"
        "class TestMine(StateBackendTests):\n"
        "    unclaimed = {'test_closing_twice_is_safe': 'it has one end'}\n"
        "    @pytest.fixture\n"
        "    def backend_class(self):\n"
        "        return WithMarks\n"
        "class TestMisspelt(TestMine):\n"
        "    unclaimed = {'test_nothing': 'there is no such row'}\n"
    )
    damage = "object_altered or changed_bit or damaged_files"
    printed = outcome(tmp_path, f"closing_twice or TestMine and (sweep_returns or {damage})")
    assert "TestMisspelt.unclaimed: no test is test_nothing" in printed
    assert "1 error" in printed, "no damage was taken for another one"
    assert "failed" not in printed.splitlines()[-1], printed
    listed = printed.partition("not claimed, and not tested")[2]
    assert "TestMine does not claim 'closing twice is safe': it has one end (1 test)" in listed
    assert "reference does not claim CLEANUP_INCREMENTALLY (1 test)" in listed


def outcome(folder, chosen):
    """Run some tests of a folder, and return what pytest prints."""
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, folder],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
    )
    return result.stdout


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
