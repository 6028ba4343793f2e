"""Replays hours later: the micro-batch's own time decides, not the worker's clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final

import pytest

from forebay_state_api.contract.backend import StateBackend
from forebay_state_api.job.ttl import StateTtlConfig
from forebay_testing.backends.cleanup import WAYS
from forebay_testing.backends.subject import BackendSubject, NewJob, skip_unless_claimed
from forebay_testing.backends.ttl import EMPTY, READS, WRITES, WRITTEN, states_with
from forebay_testing.job import MICROSECOND, KeyedJob

LATER: Final = timedelta(hours=2)
TTL: Final = timedelta(hours=1)
"""Shorter than the replay's delay: by the worker's clock everything would have expired."""

STEP: Final = timedelta(minutes=11)
BATCHES: Final = 8
FIRST_REPLAYED: Final = 2
KEYS: Final = [f"key {n}" for n in range(16)]

WorkerClock = Callable[[KeyedJob, timedelta], None]


class ReplayTests(BackendSubject):
    """Schedule 12 of the protocol, on a manual clock."""

    @pytest.fixture
    def worker_clock(self, monkeypatch: pytest.MonkeyPatch) -> WorkerClock:
        """Return a function that sets this machine's clock to a batch's time plus an offset."""

        def set_to(job: KeyedJob, ahead: timedelta) -> None:
            def time_ns() -> int:
                return (job.clock.now_us + ahead // MICROSECOND) * 1000

            monkeypatch.setattr(time, "time_ns", time_ns)
            monkeypatch.setattr(time, "time", lambda: time_ns() / 1e9)

        return set_to

    @pytest.mark.parametrize("way", ["default", *WAYS])
    def test_batches_that_run_again_two_hours_later_store_the_same(
        self,
        new_job: NewJob,
        backend_class: type[StateBackend],
        worker_clock: WorkerClock,
        way: str,
    ) -> None:
        config = StateTtlConfig(TTL)
        if way in WAYS:
            cleanup, needed = WAYS[way]
            skip_unless_claimed(backend_class, needed)
            config = StateTtlConfig(TTL, cleanup=(cleanup,))
        job = new_job(*states_with(config))
        began = job.clock.now
        worker_clock(job, timedelta(0))
        first = [_batch(job, began, number) for number in range(BATCHES)]
        stored = job.peek_all(KEYS)
        assert first[-1][2:] == [WRITTEN, EMPTY], "some live and some have expired"
        job.restart(batch_id=FIRST_REPLAYED)
        worker_clock(job, LATER)
        again = [_batch(job, began, number) for number in range(FIRST_REPLAYED, BATCHES)]
        assert again == first[FIRST_REPLAYED:]
        assert job.peek_all(KEYS) == stored


def _batch(job: KeyedJob, began: datetime, number: int) -> list[list[Any]]:
    """Write two keys; read one that was written 22 minutes ago, and one 66 minutes ago."""
    job.clock.set(began + number * STEP)
    written, live, expired = (2 * (number - ago) % len(KEYS) for ago in (0, 2, 6))
    return job.scripts(
        [
            (KEYS[written], WRITES),
            (KEYS[written + 1], WRITES),
            (KEYS[live], READS),
            (KEYS[expired], READS),
        ]
    )
