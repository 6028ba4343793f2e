"""The kit for storages passes on those of this project, and finds planted faults."""

from __future__ import annotations

import inspect
import uuid

import pytest

from forebay_engine.versions.cleaning.storage_probe import examine
from forebay_state_api.storage import open_storage
from forebay_testing import StorageTests

from .storage_faults import FAULTS

pytestmark = pytest.mark.kit

NOT_PROBED = {
    "AnEmptyObjectIsAbsent",
    "DeletesAThousand",
    "ListsAThousand",
    "NamesWithoutCase",
    "WritesOverTheBeginning",
}
"""Faults that need many objects, or rivals in one order, which `forebay doctor` does not spend."""


BROKEN = AssertionError, pytest.fail.Exception, KeyError
"""The exceptions of a row: a failure of its own, or the storage's exception of the wrong kind."""


def memory():
    return open_storage(f"memory://{uuid.uuid4()}/state")


class TestMemory(StorageTests):
    @pytest.fixture
    def storage(self):
        return memory()


class TestLocal(StorageTests):
    @pytest.fixture
    def storage(self, tmp_path):
        return open_storage(tmp_path / "state")

    @pytest.fixture
    def again(self, tmp_path):
        return open_storage(tmp_path / "state")


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_a_fault_fails_its_row(name):
    broken, row, case = FAULTS[name]
    storage = broken(memory())
    given = {"storage": storage, "again": storage, **case}
    wanted = [one for one in inspect.signature(row).parameters if one != "self"]
    with pytest.raises(BROKEN):
        row(StorageTests(), **{one: given[one] for one in wanted})


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_the_doctor_finds_it_and_does_not_stop(name):
    broken, *_ = FAULTS[name]
    findings = [*examine(broken(memory()))]
    assert len(findings) > 1 or "nothing else was probed" in findings[0].problem
    found = any(finding.problem for finding in findings)
    assert found is (name not in NOT_PROBED)
