"""Choose the cases of a row that `planted` runs, and the order of the rows of the whole kit."""

from __future__ import annotations


def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if is_wanted(item)]
    if all(item.path.name == "planted.py" for item in items):
        # In the order of the kit's parts; pytest's order is the reverse, with histories first.
        items.sort(key=part_of)


def is_wanted(item):
    cases = getattr(item.cls, "cases", None) if item.path.name == "planted.py" else None
    return cases is None or any(case in item.name for case in cases)


def part_of(item):
    return next(n for n, part in enumerate(item.cls.__mro__) if item.originalname in vars(part))
