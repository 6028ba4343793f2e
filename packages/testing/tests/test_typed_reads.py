"""Reading one key's state from outside: stored content, and errors instead of a wrong ``None``."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from forebay_state_api import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from forebay_state_api.errors import ConfigurationError, StateMigrationError
from forebay_state_api.storage.opening import open_storage
from forebay_testing import KeyedJob
from forebay_testing.reference import ReferenceBackend
from forebay_testing.typed_reads import read_state

COUNT = ValueStateDescriptor("count", int)


class OtherBackend(ReferenceBackend):
    """Another backend, by its name."""

    name = "other"


@pytest.fixture
def job():
    storage = open_storage(f"memory://{uuid.uuid4()}")
    job = KeyedJob(ReferenceBackend, storage, descriptors=[COUNT], parallelism=2)
    for key in range(10):
        job.do(key, ("count.update", key))
    return job


def read(job, descriptor, key, *, backend=ReferenceBackend, max_parallelism=8, **where):
    return read_state(
        job.storage,
        descriptor,
        key,
        uid=job.uid,
        backend=backend,
        options={},
        key_codec=job.key_codec,
        max_parallelism=max_parallelism,
        now_us=0,
        **where,
    )


def test_values_by_version(job):
    assert [read(job, COUNT, key) for key in range(10)] == list(range(10))
    assert read(job, COUNT, 3, version=3) is None
    assert read(job, COUNT, 3, version=4) == 3


@pytest.mark.parametrize(
    ("descriptor", "empty"),
    [
        (COUNT, None),
        (ValueStateDescriptor("other", float, default=7), 7.0),
        (ValueStateDescriptor("other", int, default=7, ttl=StateTtlConfig(timedelta(1))), 7),
        (ListStateDescriptor("other", int), []),
        (MapStateDescriptor("other", int, int), {}),
        (ReducingStateDescriptor("other", max, int), None),
    ],
)
def test_the_empty_version(job, descriptor, empty):
    assert read(job, descriptor, 3, version=0) == empty


def test_a_state_that_is_not_stored(job):
    with pytest.raises(ConfigurationError, match="no state 'counts'; its states: count"):
        read(job, ValueStateDescriptor("counts", int), 3)
    with pytest.raises(StateMigrationError, match="kind"):
        read(job, ListStateDescriptor("count", int), 3)


@pytest.mark.parametrize("other", [4, 128])
def test_another_max_parallelism(job, other):
    for key in range(10):
        with pytest.raises(ConfigurationError, match="max_parallelism=8"):
            read(job, COUNT, key, max_parallelism=other)


@pytest.mark.long
def test_another_backend(job):
    with pytest.raises(ConfigurationError, match="made by the backend 'reference'"):
        read(job, COUNT, 3, backend=OtherBackend)


def test_an_instant_is_found_in_any_zone(job):
    here = datetime(2024, 11, 3, 1, 30, fold=1, tzinfo=ZoneInfo("America/New_York"))
    job.do(here.astimezone(ZoneInfo("UTC")), ("count.update", 11))
    assert read(job, COUNT, here) == 11
    assert read(job, COUNT, here.replace(fold=0)) is None
