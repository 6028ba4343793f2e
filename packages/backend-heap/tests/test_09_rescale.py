"""Schedule 9: parallelism 1 → 2 → 1 with writes in between and folding at each step."""

from __future__ import annotations

import itertools
import random
import uuid
from typing import Any

import pytest

from forebay_backend_heap.backend import HeapBackend
from forebay_backend_heap.cache import CACHE
from forebay_backend_heap.file_chain import Chain
from forebay_backend_heap.snapshot import Writer
from forebay_engine.versions.choosing.reader import open_version
from forebay_state_api import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from forebay_state_api.contract.changes import ABSENT
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing import KeyedJob

pytestmark = pytest.mark.long

STATES = [
    ValueStateDescriptor("v", int),
    ListStateDescriptor("l", int),
    MapStateDescriptor("m", str, int),
]
KEYS = [f"k{number}" for number in range(12)]
MAX_DELTAS = 3
BATCHES = 5
"""Batches at each parallelism: more than the deltas that a version may have."""


class Model:
    """Models the states as plain data."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        self.lists: dict[str, list[int]] = {}
        self.maps: dict[str, dict[str, int]] = {}

    def call(self, chance: random.Random, key: str, number: int) -> tuple[str, list[Any]]:
        """Apply one record's accesses to the model too: mostly writes to all states, or a clear."""
        if chance.random() < 0.2:
            for held in (self.values, self.lists, self.maps):
                held.pop(key, None)
            return key, [("v.clear",), ("l.clear",), ("m.clear",)]
        address = chance.choice("abc")
        self.values[key] = number
        self.lists.setdefault(key, []).append(number)
        self.maps.setdefault(key, {})[address] = number
        return key, [("v.update", number), ("l.add", number), ("m.put", address, number)]

    def holds(self, key: str) -> list[Any]:
        """Return a key's stored contents, in the order of ``STATES``."""
        return [self.values.get(key, ABSENT), self.lists.get(key, []), self.maps.get(key, {})]


def chains(job: KeyedJob) -> list[list[str]]:
    """Return the roles of the files that each subtask's manifest names."""
    with open_version(job.storage, uid=job.uid) as reader:
        return [[file.meta["role"] for file in parent.files] for parent in reader.parents]


def check(job: KeyedJob, model: Model, keys: list[str]) -> None:
    assert job.peek_all(keys) == [model.holds(key) for key in keys]


@pytest.mark.parametrize(
    ("steps", "same_process"),
    [
        ((2, 1, 2), True),
        ((1, 3, 2, 1), False),
        *(
            pytest.param(2 * steps, same_process, marks=pytest.mark.slow)
            for steps in ((1, 2, 1), (1, 3, 2), (2, 1, 2))
            for same_process in (True, False)
        ),
    ],
)
def test_the_newest_value_is_found_after_every_step(
    steps: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, *, same_process: bool
) -> None:
    folds = []
    fold = Writer._fold

    def counting(self: Writer, chain: Chain, count: int) -> Any:
        folds.append(count)
        return fold(self, chain, count)

    monkeypatch.setattr(Writer, "_fold", counting)
    chance = random.Random(9)
    job = KeyedJob(
        HeapBackend,
        MemoryStorage(f"memory://{uuid.uuid4()}"),
        descriptors=STATES,
        options={"max-deltas": MAX_DELTAS, "snapshot-factor": 1000.0},
        key_type=str,
        forget=CACHE.clear,
    )
    model = Model()
    numbers = itertools.count(1)
    for parallelism in steps:
        job.restart(parallelism=parallelism, same_process=same_process)
        before = len(folds)
        for _ in range(BATCHES):
            number = next(numbers)
            changed = chance.sample(KEYS, 5)
            job.scripts([model.call(chance, key, number) for key in changed])
            check(job, model, changed)
            assert all(chain.count("delta") <= MAX_DELTAS for chain in chains(job))
        check(job, model, KEYS)
        assert len(folds) > before, "nothing was folded at this step"
    CACHE.clear()
