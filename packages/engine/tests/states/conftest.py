"""Leave out the rows of the kit that do not ask for the fixture that a class is about."""

from __future__ import annotations


def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if is_wanted(item)]


def is_wanted(item):
    fixture = getattr(item.cls, "only_with", None)
    return fixture is None or fixture in item.fixturenames
