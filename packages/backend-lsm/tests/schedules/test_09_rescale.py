"""Schedule 9: parallelism 1 → 2 → 1 with writes in between and compaction at each step."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from forebay_backend_lsm.backend import LsmBackend
from forebay_backend_lsm.layers import layers_of
from forebay_engine.versions.choosing.reader import open_version
from forebay_state_api.contract.changes import ABSENT
from forebay_state_api.job.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.storage.opening import open_storage
from forebay_testing import ImmediateCompaction, KeyedJob

pytestmark = pytest.mark.long

VALUE = ValueStateDescriptor("v", int)
LIST = ListStateDescriptor("l", int)
MAP = MapStateDescriptor("m", str, int)
KEYS = [f"k{number}" for number in range(24)]
MAX_RUNS = 3


class Model:
    """Models the states as plain data."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.lists: dict[str, list[int]] = {}
        self.maps: dict[str, dict[str, int]] = {}

    def call(self, chance: random.Random, key: str, number: int) -> tuple[str, list[Any]]:
        """Draw some accesses to one key, and apply them to the model."""
        kind = chance.choice(["put", "put", "delete", "replace"])
        if kind == "put":
            self.values[key] = number
            self.lists.setdefault(key, []).append(number)
            self.maps.setdefault(key, {})[f"u{number % 3}"] = number
            put = ("m.put", f"u{number % 3}", number)
            return key, [("v.update", number), ("l.add", number), put]
        if kind == "replace":
            self.values[key], self.lists[key], self.maps[key] = number, [number], {"x": number}
            replaced = [("m.clear",), ("m.put", "x", number)]
            return key, [("v.update", number), ("l.update", [number]), *replaced]
        for states in (self.values, self.lists, self.maps):
            states.pop(key, None)
        return key, [("v.clear",), ("l.clear",), ("m.clear",)]


def holds(model: Model, empty: Any, keys: Sequence[str] = KEYS) -> list[list[Any]]:
    """Return each key's stored contents; ``empty`` represents a missing value."""
    return [
        [model.values.get(key, empty), model.lists.get(key, []), model.maps.get(key, {})]
        for key in keys
    ]


def read(job: KeyedJob) -> list[list[Any]]:
    """Read all states of all keys in a micro-batch of the job."""
    found = job.scripts([(key, [("v.value",), ("l.get",), ("m.items",)]) for key in KEYS])
    return [[value, elements, dict(entries)] for value, elements, entries in found]


def runs(job: KeyedJob) -> int:
    with open_version(job.storage, uid=job.uid) as reader:
        return max(len(layers_of(parent.files)) for parent in reader.parents)


@pytest.mark.parametrize(
    ("steps", "late"),
    [
        ([1, 2, 4, 1], False),
        ([3, 1, 2], True),
        *(
            pytest.param(2 * steps, late, marks=pytest.mark.slow)
            for steps in ([1, 2, 1], [1, 2, 4, 1], [3, 1, 2, 1])
            for late in (False, True)
        ),
    ],
)
def test_the_newest_value_always(steps: list[int], late: bool) -> None:
    """Results are installed at once, or a batch late."""
    chance = random.Random(9)
    storage = open_storage(f"memory://{uuid.uuid4()}")
    service = ImmediateCompaction(storage, hold=late)
    job = KeyedJob(
        LsmBackend,
        storage,
        descriptors=[VALUE, LIST, MAP],
        options={"max-runs": MAX_RUNS, "block-bytes": 512, "target-file-bytes": 2_000},
        compaction=service,
    )
    model = Model()
    number = 0
    for parallelism in steps:
        job.restart(parallelism=parallelism)
        for _ in range(4):
            held = [j for j in service.submitted if not service.poll(j.id).phase.ended]
            number += 1
            chosen = chance.sample(KEYS, 9)
            job.scripts([model.call(chance, key, number) for key in chosen])
            for one in held:
                service.run(one)
            some = KEYS[number % 3 :: 3]  # `read` reads all of them
            assert job.peek_all(some) == holds(model, ABSENT, some)
            assert runs(job) <= MAX_RUNS
        assert read(job) == holds(model, None)
    assert service.submitted
    assert job.peek(VALUE, "never") is ABSENT
