"""Fixtures with a query without Spark, over a toy data layer: `forebay_testing.simulator`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_testing.clock import ManualClock
from forebay_testing.simulator.toy_query import GROUPS, Query, read_state
from forebay_testing.storage import ClockedStorage


def history(*tokens: object) -> dict[int, tuple[str, ...]]:
    """Return the state in which every key group has processed these batches."""
    return {group: tuple(str(token) for token in tokens) for group in range(GROUPS)}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def storage(clock) -> Iterator[ObjectStorage]:
    """Storage in memory whose objects get the manual clock's times."""
    inner = MemoryStorage(f"memory://{uuid.uuid4()}")
    return ClockedStorage(inner, clock)


@pytest.fixture
def query(storage, clock) -> Query:
    return Query(storage, clock)


@pytest.fixture
def make_query():
    """Return `Query`, for tests with their own storage."""
    return Query


@pytest.fixture
def expected():
    """`history`."""
    return history


@pytest.fixture
def toy_state():
    """`read_state`."""
    return read_state
