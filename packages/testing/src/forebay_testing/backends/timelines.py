"""Copies of a query's checkpoint on one state directory: each continues with its own state."""

from __future__ import annotations

from typing import Any

import pytest

from forebay_engine.versions import Checkpoint
from forebay_state_api.job.descriptors import MapStateDescriptor, ValueStateDescriptor
from forebay_state_api.job.ttl import StateTtlConfig
from forebay_testing.backends.subject import SECOND, BackendSubject, NewJob
from forebay_testing.job import KeyedJob


class _Stream:
    """A query that runs from one checkpoint; several share a job."""

    def __init__(self, job: KeyedJob, location: str, times_ms: dict[int, int]) -> None:
        self.job = job
        self.location = location
        self.times_ms = dict(times_ms)

    def batch(self, values: dict[str, int]) -> list[Any]:
        """Run one batch, as a separate run, that sets keys; return their previous values."""
        job, number = self.job, len(self.times_ms)
        job.checkpoint = Checkpoint(location=self.location, times_ms=dict(self.times_ms))
        job.clock.advance(SECOND)
        job.restart(batch_id=number)
        calls = [
            (key, [("v.value",), ("v.update", value), ("m.put", "last", value)])
            for key, value in values.items()
        ]
        found = job.scripts(calls)
        self.times_ms[number] = job.clock.now_us // 1_000
        return [before for before, *_ in found]


class TimelineTests(BackendSubject):
    """Exact values after a copy ran on the state directory of its original."""

    @pytest.fixture
    def streams(self, new_job: NewJob) -> tuple[KeyedJob, _Stream, _Stream]:
        """A job, its query and a copy of its checkpoint, made after batch 0."""
        ttl = StateTtlConfig(3600 * SECOND)
        job = new_job(
            ValueStateDescriptor("v", int, default=0),
            MapStateDescriptor("m", str, int, ttl=ttl),
            parallelism=2,
        )
        home = _Stream(job, "home", {})
        home.batch({"both": 1, "neither": 1})
        return job, home, _Stream(job, "copy", home.times_ms)

    def test_each_goes_on_with_its_own_whichever_ran_last(
        self, streams: tuple[KeyedJob, _Stream, _Stream]
    ) -> None:
        _, home, copy = streams
        assert home.batch({"both": 2, "home": 2}) == [1, 0]
        assert copy.batch({"both": 100, "copy": 100}) == [1, 0]
        assert home.batch({"both": 3, "home": 3, "copy": 3, "neither": 3}) == [2, 2, 0, 1]
        assert copy.batch({"both": 101, "home": 101, "copy": 101}) == [100, 0, 100]
