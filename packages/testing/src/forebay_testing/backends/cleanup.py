"""Clean-up (docs/reference/state.md): expired cells leave the storage, as a backend claims."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from forebay_state_api.contract.backend import Capability, StateBackend
from forebay_state_api.contract.changes import ABSENT
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.descriptors import StateDescriptor, ValueStateDescriptor
from forebay_state_api.job.ttl import (
    Cleanup,
    CleanupFullSnapshot,
    CleanupInBackground,
    CleanupInCompaction,
    CleanupIncrementally,
    CleanupOnRead,
    StateTtlConfig,
    StateVisibility,
)
from forebay_testing.backends.subject import SECOND, BackendSubject, NewJob, skip_unless_claimed
from forebay_testing.backends.ttl import DEFAULT, EMPTY, READS, TTL, WRITES, WRITTEN, states_with
from forebay_testing.job import MICROSECOND, KeyedJob

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
KEYS: Final = [f"key {n}" for n in range(20)]
GONE: Final = [ABSENT, [], {}, ABSENT, ABSENT, {}]
ENOUGH: Final = 80
"""The number of micro-batches in which every backend folds, compacts and writes a snapshot."""
_MANY: Final = 16
"""The number of micro-batches that do a part of that on every backend."""
_LOOKS: Final = (2, 4, 8, 12, 16, 24, 32, 48, 64)
"""The number of micro-batches after which a test checks whether it is already done."""

WAYS: Final[Mapping[str, tuple[Cleanup, Capability]]] = {
    "full snapshot": (CleanupFullSnapshot(), Capability.CLEANUP_FULL_SNAPSHOT),
    "incrementally": (CleanupIncrementally(5), Capability.CLEANUP_INCREMENTALLY),
    "in compaction": (CleanupInCompaction(), Capability.CLEANUP_IN_COMPACTION),
}
_EVERY_RECORD: Final = CleanupIncrementally(5, every_record=True)
"""The engine decides when cells are checked; the backend's work is the same."""


class CleanupTests(BackendSubject):
    """Twenty keys expire, and other keys are written until the clean-up has happened."""

    @pytest.fixture
    def cleaning(
        self,
        new_job: NewJob,
        backend_class: type[StateBackend],
    ) -> Any:
        """Return a factory of jobs whose states are cleaned up in one way."""

        def make(
            cleanup: Cleanup, needed: Capability, parallelism: int = 1, **config: Any
        ) -> KeyedJob:
            skip_unless_claimed(backend_class, needed)
            ttl = StateTtlConfig(TTL, cleanup=(cleanup,), **config)
            return new_job(*states_with(ttl), parallelism=parallelism)

        return make

    @pytest.mark.parametrize("way", [*WAYS, "every record"])
    def test_what_has_expired_leaves_the_storage_unread_and_is_logged(
        self, cleaning: Any, way: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """It does not come back either: not in other subtasks, nor where its time is set back."""
        every_record = _EVERY_RECORD, Capability.CLEANUP_INCREMENTALLY
        job: KeyedJob = cleaning(*WAYS.get(way, every_record), parallelism=2)
        job.scripts([(key, WRITES) for key in KEYS])
        job.clock.advance(TTL)
        with caplog.at_level(logging.DEBUG):
            _write_until(job, lambda: _all_gone(job))
        logged = [line for line in caplog.messages if line.startswith("ttl: ")]
        for descriptor in job.descriptors:
            assert any(repr(descriptor.name) in line for line in logged), descriptor.name
        job.clock.advance(-TTL)
        job.descriptors = states_with(StateTtlConfig(100 * TTL))
        job.restart(parallelism=3)
        assert job.scripts([(key, READS) for key in KEYS]) == [EMPTY] * len(KEYS)

    @pytest.mark.parametrize("way", list(WAYS))
    def test_the_epoch_is_a_time_like_others(self, cleaning: Any, way: str) -> None:
        job: KeyedJob = cleaning(*WAYS[way])
        job.clock.set(EPOCH - TTL)
        job.scripts([(key, WRITES) for key in KEYS])
        job.clock.set(EPOCH)
        _write_until(job, lambda: _all_gone(job))

    @pytest.mark.parametrize("way", list(WAYS))
    def test_elements_and_entries_go_one_by_one(self, cleaning: Any, way: str) -> None:
        job: KeyedJob = cleaning(*WAYS[way])
        job.scripts([(key, WRITES) for key in KEYS])
        job.clock.advance(6 * SECOND)
        job.scripts([(key, [("l.add", 3), ("m.put", "b", 3), ("s.put", 2, 3)]) for key in KEYS])
        written = job.clock.now_us
        job.clock.advance(6 * SECOND)
        live = [ABSENT, [(written, 3)], {"b": (written, 3)}, ABSENT, ABSENT, {2: (written, 3)}]
        _write_until(job, lambda: job.peek_all(KEYS) == [live] * len(KEYS))
        assert job.scripts([(key, READS) for key in KEYS]) == [
            [DEFAULT, [3], [("b", 3)], None, None, [(2, 3)]]
        ] * len(KEYS)

    @pytest.mark.parametrize("way", list(WAYS))
    def test_what_lives_stays(self, cleaning: Any, way: str) -> None:
        job: KeyedJob = cleaning(*WAYS[way])
        job.scripts([(key, WRITES) for key in KEYS])
        job.clock.advance(TTL - MICROSECOND)
        for number in range(_MANY):
            _write_others(job, number)
        job.restart()
        assert job.scripts([(key, READS) for key in KEYS]) == [WRITTEN] * len(KEYS)

    def test_a_replay_and_an_expired_value_that_is_shown(self, cleaning: Any) -> None:
        way = CleanupIncrementally(100), Capability.CLEANUP_INCREMENTALLY
        shown = StateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP
        job: KeyedJob = cleaning(*way, visibility=shown)
        job.scripts([(key, WRITES) for key in KEYS])
        job.clock.advance(TTL)
        assert job.do("key 3", ("v.value",), crash=True) == [1]
        assert job.do("key 3", ("v.value",)) == [1]
        assert job.do("key 3", ("v.value",)) == [DEFAULT]
        assert job.peek(job.descriptors[0], "key 3") is ABSENT

    def test_each_access_checks_so_many_cells(
        self, new_job: NewJob, backend_class: type[StateBackend]
    ) -> None:
        skip_unless_claimed(backend_class, Capability.CLEANUP_INCREMENTALLY)
        state = _value(CleanupIncrementally(3))
        job = new_job(state, key_type=str)
        job.scripts([(key, [("v.update", 1)]) for key in KEYS])
        job.clock.advance(TTL)
        left = []
        for _ in range(7):
            job.do("new", ("v.value",))
            left.append(_count(job))
        assert left == [17, 14, 11, 8, 5, 2, 0]

    def test_the_walk_goes_on_in_another_process(
        self, new_job: NewJob, backend_class: type[StateBackend]
    ) -> None:
        skip_unless_claimed(backend_class, Capability.CLEANUP_INCREMENTALLY)
        state = _value(CleanupIncrementally(1, every_record=True))
        job = new_job(state, key_type=str)
        job.scripts([(key, [("v.update", 1)]) for key in KEYS])
        job.clock.advance(TTL / 2)
        job.scripts([(key, [("v.update", 1)]) for key in KEYS[:15]])
        job.clock.advance(TTL / 2)
        for _ in range(25):
            job.restart()
            job.do("new", ("v.value",))
        assert _count(job) == 15, "two checks each, of which none begins at the beginning"

    def test_a_record_that_leaves_the_state_alone_checks_if_asked_to(
        self, new_job: NewJob, backend_class: type[StateBackend]
    ) -> None:
        skip_unless_claimed(backend_class, Capability.CLEANUP_INCREMENTALLY)
        for every_record, left in (True, 13), (False, 20):
            state = _value(CleanupIncrementally(7, every_record=every_record))
            job = new_job(state, key_type=str, uid=f"every {every_record}")
            job.scripts([(key, [("v.update", 1)]) for key in KEYS])
            job.clock.advance(TTL)
            job.do("new")
            assert _count(job) == left

    def test_the_background_cleans_up_unless_switched_off(
        self, new_job: NewJob, backend_class: type[StateBackend]
    ) -> None:
        own = (CleanupOnRead(), CleanupInBackground())
        on = new_job(*states_with(StateTtlConfig(TTL, cleanup=own)), uid="on")
        read = StateTtlConfig(TTL, cleanup=(CleanupOnRead(),))
        off = new_job(*states_with(read), uid="off")
        for job in on, off:
            job.scripts([(key, WRITES) for key in KEYS])
            job.clock.advance(TTL)
        if backend_class.background_cleanup is not None:
            _write_until(on, lambda: _all_gone(on))
        for number in range(_MANY):
            _write_others(off, number)
        stored = off.peek_all(KEYS)
        assert all(ABSENT not in one and [] not in one and {} not in one for one in stored)

    def test_keys_that_turn_over_do_not_pile_up(
        self, new_job: NewJob, backend_class: type[StateBackend]
    ) -> None:
        skip_unless_claimed(backend_class, Capability.CLEANUP_INCREMENTALLY)
        state = _value(CleanupIncrementally(5))
        job = new_job(state, key_type=str)
        stored = []
        for generation in range(5):
            for part in range(5):
                keys = [f"{generation} {part} {n}" for n in range(40)]
                job.scripts([(key, [("v.update", 1)]) for key in keys])
                stored.append(len(job.stored_keys(state)))
                job.clock.advance(TTL / 5)
        assert max(stored[:5]) == 200, "of the first generation nothing has expired"
        assert max(stored) <= 2 * 200

    @pytest.mark.parametrize(
        ("cleanup", "needed"),
        [
            (CleanupFullSnapshot(), Capability.CLEANUP_FULL_SNAPSHOT),
            (CleanupIncrementally(5), Capability.CLEANUP_INCREMENTALLY),
            (CleanupInCompaction(), Capability.CLEANUP_IN_COMPACTION),
        ],
        ids=["full snapshot", "incrementally", "in compaction"],
    )
    def test_a_clean_up_is_done_or_refused_never_ignored(
        self, new_job: NewJob, backend_class: type[StateBackend], cleanup: Any, needed: Capability
    ) -> None:
        ttl = StateTtlConfig(TTL, cleanup=(CleanupOnRead(), cleanup))
        job = new_job(*states_with(ttl))
        if needed in backend_class.capabilities:
            job.do("k", *WRITES)
            job.clock.advance(TTL)
            assert job.do("k", *READS) == EMPTY
        else:
            with pytest.raises(ConfigurationError, match=type(cleanup).__name__):
                job.do("k", *WRITES)


def _value(cleanup: Cleanup) -> StateDescriptor:
    return ValueStateDescriptor("v", int, ttl=StateTtlConfig(TTL, cleanup=(cleanup,)))


def _write_until(job: KeyedJob, done: Callable[[], bool]) -> None:
    """Run micro-batches that write other keys until the condition holds."""
    for number in range(ENOUGH):
        _write_others(job, number)
        if number + 1 in (*_LOOKS, ENOUGH) and done():
            return
    pytest.fail(f"it has not come after {ENOUGH} micro-batches")


def _write_others(job: KeyedJob, number: int) -> None:
    job.scripts([(f"other {number % 3} {n}", WRITES) for n in range(5)])


def _all_gone(job: KeyedJob) -> bool:
    return job.peek_all(KEYS) == [GONE] * len(KEYS)


def _count(job: KeyedJob) -> int:
    """Return the number of keys of the job's only state."""
    return sum(stored is not ABSENT for (stored,) in job.peek_all(KEYS))
