"""TTL switched on or off over stored state (docs/how-to/change-a-job.md)."""

from __future__ import annotations

from typing import Any

import pytest

from forebay_engine.versions import RestoreFrom
from forebay_engine.versions.choosing.savepoints import create_savepoint
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import StateMigrationError, StorageError
from forebay_state_api.job.context import RuntimeContext
from forebay_state_api.job.descriptors import StateDescriptor, ValueStateDescriptor
from forebay_state_api.job.ttl import StateTtlConfig
from forebay_testing.backends.namespaced_timers import Windowed, do, step
from forebay_testing.backends.subject import SECOND, BackendSubject, NewJob
from forebay_testing.backends.timers import PROCESSING
from forebay_testing.backends.ttl import EMPTY, READS, TTL, WRITES, WRITTEN, states_with
from forebay_testing.job import KeyedJob
from forebay_testing.scripts import Access
from forebay_testing.storage import Fault, FaultyStorage

CLEARS: list[Access] = [(f"{name}.clear",) for name in "vlmras"]


def with_ttl() -> list[StateDescriptor]:
    """One state of each kind; each may have been stored without a TTL."""
    states = states_with(StateTtlConfig(TTL))
    for descriptor in states:
        descriptor.switch_ttl = True
    return states


def without_ttl() -> list[StateDescriptor]:
    """The same states without a TTL; each may have been stored with one."""
    states = with_ttl()
    for descriptor in states:
        descriptor.ttl = None
    return states


def switched(
    new_job: NewJob,
    before: list[StateDescriptor],
    after: list[StateDescriptor],
    between: str | None,
) -> KeyedJob:
    """Write two keys, and declare them otherwise: at once, at another parallelism, or elsewhere.

    A fork goes on from the newest version, or from a savepoint, after which the source clears all.
    """
    job = new_job(*before, query="source")
    job.do("k", *WRITES)
    job.do("k 2", *WRITES)
    job.clock.advance(5 * SECOND)
    if between in {"fork", "savepoint"}:
        savepoint = "kept" if between == "savepoint" else None
        if savepoint:
            create_savepoint(job.storage, savepoint, uid=job.uid)
            job.do("k", *CLEARS)
            job.do("k 2", *CLEARS)
        restore = RestoreFrom("source", savepoint=savepoint)
        return new_job(*after, query="fork", restore=restore, clock=job.clock)
    job.descriptors = after
    job.restart(parallelism=3 if between == "rescale" else None)
    return job


class TtlSwitchTests(BackendSubject):
    """Descriptors with ``switch_ttl``."""

    @pytest.fixture(params=["before its commit", "in its commit"])
    def dying(self, request: pytest.FixtureRequest, new_job: NewJob, storage: ObjectStorage) -> Any:
        """Makes a job that has written two keys, and whose attempt to switch has died.

        After an attempt that dies before its commit, the job restarts.
        """

        def make(before: list[StateDescriptor], after: list[StateDescriptor]) -> KeyedJob:
            faulty = FaultyStorage(storage)
            job = new_job(*before, storage=faulty)
            job.do("k", *WRITES)
            job.do("k 2", *WRITES)
            job.descriptors = after
            job.restart()
            if request.param == "in its commit":
                faulty.faults.append(Fault(operation="put*", name="*/manifest-*"))
                with pytest.raises(StorageError):
                    job.do("k", *READS)
            else:
                assert job.do("k", *READS, crash=True) == WRITTEN
                job.restart()
            return job

        return make

    @pytest.mark.parametrize("between", [None, "rescale", "fork", "savepoint"])
    def test_a_ttl_that_is_switched_on_begins_with_the_restart(
        self, new_job: NewJob, between: str | None
    ) -> None:
        job = switched(new_job, without_ttl(), with_ttl(), between)
        assert job.do("k", *READS) == WRITTEN
        job.clock.advance(5 * SECOND)
        assert job.do("other", ("v.update", 1)) == [None]
        job.restart()
        assert job.do("k", *READS) == WRITTEN
        job.clock.advance(5 * SECOND)
        assert job.do("k", *READS) == EMPTY, "what is stored counts as written at the restart"
        assert job.do("k 2", *READS) == EMPTY

    @pytest.mark.parametrize("between", [None, "rescale", "fork", "savepoint"])
    def test_a_ttl_that_is_switched_off_ends_with_the_restart(
        self, new_job: NewJob, between: str | None
    ) -> None:
        job = switched(new_job, with_ttl(), without_ttl(), between)
        job.clock.advance(100 * TTL)
        assert job.do("k", *READS) == WRITTEN
        job.restart()
        assert job.do("k 2", *READS) == WRITTEN

    def test_times_begin_with_the_attempt_that_commits(self, dying: Any) -> None:
        job: KeyedJob = dying(without_ttl(), with_ttl())
        job.clock.advance(6 * SECOND)
        assert job.do("k", *READS) == WRITTEN
        job.clock.advance(6 * SECOND)
        job.restart()
        assert job.do("k 2", *READS) == WRITTEN
        job.clock.advance(4 * SECOND)
        assert job.do("k", *READS) == EMPTY, "a later restart does not switch again"
        assert job.do("k 2", *READS) == EMPTY

    def test_times_end_with_the_attempt_that_commits(self, dying: Any) -> None:
        job: KeyedJob = dying(with_ttl(), without_ttl())
        job.clock.advance(6 * SECOND)
        assert job.do("k", *READS) == WRITTEN
        job.clock.advance(100 * TTL)
        job.restart()
        assert [job.do(key, *READS) for key in ("k", "k 2")] == [WRITTEN] * 2

    @pytest.mark.parametrize("on", [True, False], ids=["on", "off"])
    def test_an_attempt_that_dies_has_switched_nothing(self, dying: Any, *, on: bool) -> None:
        before, after = (without_ttl(), with_ttl()) if on else (with_ttl(), without_ttl())
        job: KeyedJob = dying(before, after)
        job.descriptors = without_ttl() if on else states_with(StateTtlConfig(TTL))
        job.restart()
        job.clock.advance(TTL - SECOND)
        assert job.do("k", *READS) == WRITTEN
        job.clock.advance(SECOND)
        assert job.do("k 2", *READS) == (WRITTEN if on else EMPTY)

    def test_a_ttl_can_be_switched_back(self, new_job: NewJob) -> None:
        job = switched(new_job, with_ttl(), without_ttl(), None)
        job.do("other", *WRITES)
        job.clock.advance(TTL)
        job.descriptors = with_ttl()
        job.restart()
        assert job.do("k", *READS) == WRITTEN
        job.clock.advance(TTL)
        assert job.do("other", *READS) == EMPTY

    def test_other_states_and_namespaces_stay(self, new_job: NewJob) -> None:
        kept = ValueStateDescriptor("kept", int)
        job = new_job(without_ttl()[0], kept)
        job.do("k", ("v.update", 1), ("kept.update", 2), ("namespace", "w"), ("kept.update", 3))
        job.descriptors = [with_ttl()[0], kept]
        job.restart()
        read = [("v.value",), ("kept.value",), ("namespace", "w"), ("kept.value",)]
        for _ in range(2):
            assert job.do("k", *read) == [1, 2, None, 3]
            job.restart()

    @pytest.mark.parametrize("parallelism", [None, 3], ids=["restart", "rescale"])
    @pytest.mark.parametrize("on", [True, False], ids=["on", "off"])
    def test_timers_stay_in_their_namespaces_and_listings(
        self, new_job: NewJob, parallelism: int | None, *, on: bool
    ) -> None:
        ttl = StateTtlConfig(100 * SECOND)
        before, after = (None, ttl) if on else (ttl, None)
        job, keys, listing = new_job(), "abcd", [step("list", "w"), step("list")]
        sets = [step("register", "w", PROCESSING, 5, 7), step("register", None, PROCESSING, 6)]
        job.run(_Switched(before), [(key, 0, [*sets, *listing]) for key in keys])
        job.restart(parallelism=parallelism)
        switched = _Switched(after)
        listed = job.run(switched, [(key, 0, listing) for key in keys])
        assert listed == [[5, 7], [6]] * len(keys)
        job.restart()
        do(
            job,
            switched,
            0,
            step("delete", "w", PROCESSING, 5),
            step("register", "w", PROCESSING, 9),
        )
        fired = [("b", "w", 5, 12), ("c", "w", 5, 12), ("d", "w", 5, 12)]
        assert sorted(do(job, switched, 5)) == fired
        assert do(job, switched, 0, *listing) == [[7, 9], [6]]
        rest = [(key, w, at) for key in keys for w, at in (("w", 7), (None, 6))]
        found = [one[:3] for one in do(job, switched, 5)]
        assert sorted(found, key=repr) == sorted([*rest, ("a", "w", 9)], key=repr)

    def test_a_switch_needs_every_stored_state(self, new_job: NewJob) -> None:
        job = new_job(*without_ttl())
        job.do("k", *WRITES)
        job.descriptors = with_ttl()[:2]
        job.restart()
        with pytest.raises(StateMigrationError, match=r"does not declare 'a', 'm', 'r', 's'"):
            job.do("k", *READS[:2])
        job.descriptors = without_ttl()
        job.restart()
        assert job.do("k", *READS) == WRITTEN


class _Switched(Windowed):
    """Has timers, and a value whose TTL may be switched."""

    def __init__(self, ttl: StateTtlConfig | None) -> None:
        self.ttl = ttl

    def open(self, context: RuntimeContext) -> None:
        super().open(context)
        context.get_state(ValueStateDescriptor("v", int, ttl=self.ttl, switch_ttl=True))
