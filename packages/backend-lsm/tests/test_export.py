"""Exports of point tables: in windows and pages of any size, over runs that hold few cells."""

from __future__ import annotations

import random

import pytest

from forebay_backend_lsm import export
from forebay_state_api.contract.changes import ABSENT


def exported(table, page):
    found = {}
    for changes in table.export(page):
        ((namespace, points),) = changes.points.items()
        assert 0 < len(points.keys) <= page
        for key, group, value in zip(points.keys, points.groups, points.values, strict=True):
            assert (namespace, key) not in found
            found[namespace, key] = (group, value)
    return found


@pytest.mark.parametrize("page", [1, 30, 5_000])
@pytest.mark.parametrize("in_memory", [False, True])
def test_each_key_is_there_once(kit, new_operator, monkeypatch, page, in_memory):
    monkeypatch.setattr(export, "_STEP", 10)
    operator, declared, rng = new_operator(), kit.spec(), random.Random(1)
    parts, held = [{"first": 1}], {}
    for count in (3, 400, 7):  # the largest run is neither the oldest nor the newest
        keys = [f"k{rng.randrange(600)}" for _ in range(count)]
        parts.append({key: rng.choice([ABSENT, *[count] * 19]) for key in keys})
    for part in parts:
        held |= part
    tables = [kit.points(part) for part in parts]
    if in_memory:
        table = operator.table(declared)
        for changes in tables:
            table.apply(changes)
    else:
        for changes in tables:
            operator.commit((declared, changes))
        table = operator.table(declared)
    expected = {
        (None, key): (kit.group_of(key), value)
        for key, value in held.items()
        if value is not ABSENT
    }
    assert exported(table, page) == expected
