"""Which cases of a row `planted` runs."""

from __future__ import annotations


def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if is_wanted(item)]


def is_wanted(item):
    cases = getattr(item.cls, "cases", None) if item.path.name == "planted.py" else None
    return cases is None or any(case in item.name for case in cases)
