"""Choose the cases of a row that `planted` runs, and the order of the rows of the whole kit."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if is_wanted(item)]
    if all(item.path.name == "planted.py" for item in items):
        items.sort(key=turn_of)


def is_wanted(item):
    cases = getattr(item.cls, "cases", None) if item.path.name == "planted.py" else None
    return cases is None or any(case in item.name for case in cases)


def turn_of(item):
    """The part of the fault's row first, and then all parts in the kit's order."""
    parts = item.cls.__mro__
    part = next(part for part in parts if item.originalname in vars(part))
    return part is not item.cls.own_part, parts.index(part)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Let the other cases of a planted fault know that one has caught it."""
    report = yield
    if report.failed and hasattr(item.cls, "caught"):
        item.cls.caught = True
    return report
