"""Forks (docs/how-to/savepoints.md): state that begins as another operator's version."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from forebay_engine.versions import Janitor, RestoreFrom
from forebay_state_api.contract.backend import StateBackend
from forebay_state_api.errors import ConfigurationError, StateMigrationError
from forebay_state_api.job.descriptors import ListStateDescriptor, ValueStateDescriptor
from forebay_state_api.job.ttl import StateTtlConfig
from forebay_testing.backends.rescale import KEYS
from forebay_testing.backends.subject import SECOND, BackendSubject, NewJob
from forebay_testing.backends.ttl import DEFAULT, EMPTY, READS, TTL, WRITES, WRITTEN, states_with
from forebay_testing.job import KeyedJob
from forebay_testing.reference import ReferenceBackend

AGAIN: list[Any] = [1, [1, 2, 1, 2], [("a", 1), ("b", 2)], 2, 1.0, [(1, 1), (2, 2)]]


class ForkTests(BackendSubject):
    """A source of twenty keys, and forks under other queries, by reference or cell by cell."""

    @pytest.fixture
    def source(self, new_job: NewJob) -> KeyedJob:
        """A job whose keys were written in two batches, in two namespaces."""
        job = new_job(*states_with(StateTtlConfig(TTL)), parallelism=3, query="source")
        job.scripts([(key, WRITES) for key in KEYS[:10]])
        job.clock.advance(6 * SECOND)
        job.scripts([(key, [*WRITES, ("namespace", "w"), *WRITES]) for key in KEYS[10:]])
        return job

    @pytest.fixture
    def fork_of(self, new_job: NewJob) -> Any:
        """Return a function that forks a job at its newest version."""

        def make(source: KeyedJob, **more: Any) -> KeyedJob:
            more.setdefault("restore", RestoreFrom("source"))
            more.setdefault("query", "fork")
            more.setdefault("parallelism", 3)
            job: KeyedJob = new_job(*source.descriptors, clock=source.clock, **more)
            return job

        return make

    @pytest.mark.parametrize("parallelism", [1, 3, 5])
    def test_every_key_is_found_with_its_times(
        self, source: KeyedJob, fork_of: Any, parallelism: int
    ) -> None:
        fork = fork_of(source, parallelism=parallelism)
        fork.do("new", ("v.update", 8))
        fork.clock.advance(5 * SECOND)
        found = fork.scripts([(key, [*READS, ("namespace", "w"), *READS]) for key in KEYS])
        assert found == [[*EMPTY, None, *EMPTY]] * 10 + [[*WRITTEN, None, *WRITTEN]] * 10
        assert fork.do("new", ("v.value",)) == [8]
        source.restart()
        assert source.do("new", ("v.value",)) == [DEFAULT]

    def test_nothing_is_copied(self, source: KeyedJob, fork_of: Any) -> None:
        fork = fork_of(source)
        fork.scripts([(key, [("v.value",)]) for key in KEYS[10:]])
        assert [info.name for info in fork.storage.list("data")] == []

    def test_source_and_fork_go_their_own_ways(self, source: KeyedJob, fork_of: Any) -> None:
        fork = fork_of(source)
        for job, number in ((fork, 10), (source, 20), (fork, 11), (source, 21)):
            job.restart()
            job.do(KEYS[15], ("v.update", number), ("l.add", number))
        for job, number in ((fork, 10), (source, 20)):
            job.restart(parallelism=2)
            value, elements = job.do(KEYS[15], ("v.value",), ("l.get",))
            assert (value, elements) == (number + 1, [1, 2, number, number + 1])

    def test_the_source_may_be_cleared_behind_a_fork_and_its_fork(
        self, source: KeyedJob, fork_of: Any
    ) -> None:
        second = fork_of(source)
        second.scripts([(KEYS[10], WRITES)])
        third = fork_of(source, query="third", restore=RestoreFrom("fork"), parallelism=2)
        third.scripts([(KEYS[11], WRITES)])
        for cleared, fork, found in (
            (source, second, [AGAIN, *[WRITTEN] * 9]),
            (second, third, [AGAIN, AGAIN, *[WRITTEN] * 8]),
        ):
            cleared.restart(parallelism=1)
            for number in range(16):
                cleared.scripts([(key, WRITES) for key in KEYS[number % 4 :: 4]])
                if number % 4 == 3:
                    _sweep(cleared)
            fork.restart()
            assert fork.scripts([(key, READS) for key in KEYS[10:]]) == found

    def test_a_version_of_the_past(self, source: KeyedJob, fork_of: Any) -> None:
        source.do(KEYS[15], ("v.update", 9))
        fork = fork_of(source, restore=RestoreFrom("source", version=2))
        assert fork.do(KEYS[15], ("v.value",)) == [1]

    def test_a_failed_first_batch_begins_with_the_same_version(
        self, source: KeyedJob, fork_of: Any
    ) -> None:
        fork = fork_of(source)
        fork.do(KEYS[15], ("v.update", 9), crash=True)
        source.do(KEYS[15], ("v.update", 8))
        for _ in range(2):
            fork.restart(batch_id=0)
            assert fork.do(KEYS[15], ("v.value",)) == [1]

    def test_state_that_is_not_declared(self, source: KeyedJob, fork_of: Any) -> None:
        fork = fork_of(source)
        everything, fork.descriptors = fork.descriptors, fork.descriptors[:1]
        with pytest.raises(
            StateMigrationError, match=r"'l', 'm', 'r', 's'.*allow_non_restored=True"
        ):
            fork.do(KEYS[15], ("v.value",))
        fork.restore = RestoreFrom("source", allow_non_restored=True)
        fork.restart()
        assert fork.do(KEYS[15], ("v.value",)) == [1]
        fork.descriptors = everything
        fork.restart()
        assert fork.do(KEYS[15], *READS) == WRITTEN, "what was not declared was kept"

    def test_another_uid(self, source: KeyedJob, fork_of: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"no operator 'new'.*'operator'.*uid="):
            fork_of(source, uid="new").do(KEYS[15], ("v.value",))
        mapped = RestoreFrom("source", uid="operator")
        assert fork_of(source, uid="new", restore=mapped).do(KEYS[15], ("v.value",)) == [1]

    @pytest.mark.parametrize("restore", [RestoreFrom("nowhere"), RestoreFrom("source", version=9)])
    def test_nothing_there(self, source: KeyedJob, fork_of: Any, restore: RestoreFrom) -> None:
        fork = fork_of(source, restore=restore)
        if restore.version is None:
            with pytest.raises(ConfigurationError, match="no state of this query is stored"):
                fork.do(KEYS[15], ("v.value",))
        else:
            assert fork.do(KEYS[15], ("v.value",)) == [1], "the newest below it"

    def test_another_max_parallelism(self, source: KeyedJob, fork_of: Any) -> None:
        with pytest.raises(ConfigurationError, match="max_parallelism=8"):
            fork_of(source, max_parallelism=16).do(KEYS[15], ("v.value",))

    @pytest.mark.parametrize("parallelism", [1, 4])
    def test_from_and_to_another_backend(
        self,
        source: KeyedJob,
        fork_of: Any,
        backend_class: type[StateBackend],
        parallelism: int,
    ) -> None:
        found_by = {one.name: one for one in (backend_class, ReferenceBackend)}
        away = fork_of(source, parallelism=parallelism, find_backend=found_by.__getitem__)
        away.backend_class, away.options = ReferenceBackend, {}
        away.do("new", ("v.update", 7), ("m.put", "x", 3))
        back = fork_of(
            source, query="back", restore=RestoreFrom("fork"), find_backend=found_by.__getitem__
        )
        back.do(KEYS[0], ("l.add", 3))
        back.clock.advance(5 * SECOND)
        for job in (away, back):
            job.restart(parallelism=2)
            found = job.scripts([(key, [*READS, ("namespace", "w"), *READS]) for key in KEYS[1:]])
            assert found == [[*EMPTY, None, *EMPTY]] * 9 + [[*WRITTEN, None, *WRITTEN]] * 10
            assert job.do("new", ("v.value",), ("m.items",)) == [7, [("x", 3)]]
        assert back.do(KEYS[0], ("l.get",)) == [[3]]

    def test_values_of_older_types_change_their_backend(
        self, new_job: NewJob, backend_class: type[StateBackend]
    ) -> None:
        source = new_job(*_of(int), query="source")
        source.do("a", ("v.update", 1), ("l.add", 1))
        source.descriptors = _of(float)
        source.restart()
        source.do("a", ("l.add", 2.0))
        source.do("b", ("v.update", 3.0))
        found_by = {one.name: one for one in (backend_class, ReferenceBackend)}
        restore = RestoreFrom("source")
        fork = new_job(*_of(float), restore=restore, find_backend=found_by.__getitem__)
        fork.backend_class, fork.options = ReferenceBackend, {}
        assert repr(fork.do("a", ("v.value",), ("l.get",))) == "[1.0, [1.0, 2.0]]"
        assert fork.do("b", ("v.value",)) == [3.0]


def _of(one: Any) -> list[Any]:
    return [ValueStateDescriptor("v", one), ListStateDescriptor("l", one)]


def _sweep(job: KeyedJob) -> None:
    """Run a pass of the job's janitor that keeps next to nothing."""
    janitor = Janitor(job.storage, run_key=job.run_key, retention=1, min_age=timedelta(0))
    janitor.sweep(job.batch_id)
