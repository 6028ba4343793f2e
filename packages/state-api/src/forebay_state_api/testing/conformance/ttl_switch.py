"""TTL switched on or off over stored state (docs/how-to/change-a-job.md)."""

from __future__ import annotations

import pytest

from forebay_state_api.errors import StateMigrationError
from forebay_state_api.job.descriptors import StateDescriptor, ValueStateDescriptor
from forebay_state_api.job.ttl import StateTtlConfig
from forebay_state_api.testing.conformance.subject import (
    SECOND,
    BackendSubject,
    NewJob,
)
from forebay_state_api.testing.conformance.ttl import (
    EMPTY,
    READS,
    TTL,
    WRITES,
    WRITTEN,
    states_with,
)
from forebay_state_api.testing.job import KeyedJob
from forebay_state_api.testing.scripts import Access
from forebay_state_api.versions import RestoreFrom
from forebay_state_api.versions.savepoints import create_savepoint

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
