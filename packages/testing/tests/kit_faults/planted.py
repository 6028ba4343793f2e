"""Planted faults as tests of the kit that must fail; `test_faults` runs this file.

``KIT_FAULTS`` names the faults; with ``KIT_WHOLE`` each runs the whole kit instead of its row.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import Phase, settings

from forebay_testing import StateBackendTests
from forebay_testing.backends import cleanup, subject

from .faults import FAULTS, MISSED
from .sqlite_backend import SqliteBackend

# The example that finds a fault need not be minimised or explained.
settings.register_profile("found", phases=[Phase.generate])
settings.load_profile("found")
# By then the backend has cleaned up, if it must.
cleanup.ENOUGH = 16


def of(backend):
    """The fixtures of a subject."""

    class OfSqlite(subject.BackendSubject):
        caught = False
        """Whether a case has failed; set by ``conftest.py``."""

        @pytest.fixture(autouse=True)
        def _one_case_is_enough(self):
            if self.caught:
                pytest.skip("another case has caught it")

        @pytest.fixture
        def backend_class(self):
            return backend

        @pytest.fixture
        def forget(self):
            backend.forget()
            yield backend.forget
            backend.forget()

    return OfSqlite


def row_of(part, row):
    """The part of the kit that a row is in, without its other rows."""
    fixtures = {
        name: value
        for base in reversed(part.__mro__)
        if base not in subject.BackendSubject.__mro__
        for name, value in vars(base).items()
        if not name.startswith(("test_", "__"))
    }
    own = {"__doc__": part.__doc__, row.__name__: row}
    return type(part.__name__, (subject.BackendSubject,), {**fixtures, **own})


def part_of(row):
    return next(part for part in StateBackendTests.__mro__ if row.__name__ in vars(part))


def planted(name):
    """A fault, or the backend without one in the rows and cases of some faults."""
    faults = [FAULTS[name]] if name in FAULTS else faults_of(name)
    backend = FAULTS[name].backend if name in FAULTS else MISSED.get(name, SqliteBackend)
    if "KIT_WHOLE" in os.environ:
        part, cases = StateBackendTests, [""]
    else:
        row = faults[0].row
        part, cases = row_of(part_of(row), row), [fault.case for fault in faults]
    own_part = part_of(faults[0].row) if faults else None
    members = {"__module__": __name__, "cases": cases, "own_part": own_part}
    return type(f"Test{name}", (of(backend), part), members)


def faults_of(row):
    return [fault for fault in FAULTS.values() if fault.row.__name__ == row]


for _name in os.environ["KIT_FAULTS"].split(","):
    globals()[f"Test{_name}"] = planted(_name)
