"""Generations of types (docs/how-to/change-a-job.md): data older than several declarations."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any

import attrs
import pytest

from forebay_engine.versions import RestoreFrom
from forebay_engine.versions.choosing.reader import open_version
from forebay_state_api.codecs import Alias, MigratedFrom
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import StateMigrationError
from forebay_state_api.job.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from forebay_state_api.job.ttl import StateTtlConfig
from forebay_state_api.keys import KeyGroupRange
from forebay_testing.backends.subject import BackendSubject, NewJob
from forebay_testing.job import KeyedJob
from forebay_testing.reference import ReferenceBackend

Between = Callable[[KeyedJob, NewJob], KeyedJob]
"""A change to a job between two of its declarations; returns the job that continues."""

_READS = [("v.value",), ("l.get",), ("m.get", "a")]


def record(**fields: Any) -> Any:
    """Make a class; all have the same name. A field is its type, or a pair with the default."""
    made = {
        name: attrs.field(type=declared[0], default=declared[1])
        if isinstance(declared, tuple)
        else attrs.field(type=declared)
        for name, declared in fields.items()
    }
    return attrs.make_class("Record", made, frozen=True)


def _states(of: Any, ttl: StateTtlConfig | None = None) -> list[StateDescriptor]:
    return [
        ValueStateDescriptor("v", of, ttl=ttl),
        ListStateDescriptor("l", of, ttl=ttl),
        MapStateDescriptor("m", str, of, ttl=ttl),
    ]


def _written(value: Any) -> list[Any]:
    return [("v.update", value), ("l.add", value), ("m.put", "a", value)]


def _restarted(job: KeyedJob, _: NewJob) -> KeyedJob:
    job.restart()
    return job


def _same_process(job: KeyedJob, _: NewJob) -> KeyedJob:
    job.restart(same_process=True)
    return job


def _compacted(job: KeyedJob, new_job: NewJob) -> KeyedJob:
    """Run commits until all files have been merged, if two dozen suffice."""
    before = _files(job)
    for number in range(24):
        job.do(f"other {number % 7}", ("n.update", number))
        if not before & _files(job):
            break
    return _restarted(job, new_job)


def _files(job: KeyedJob) -> set[str]:
    """Return the names of the files of the newest version."""
    groups = KeyGroupRange(0, job.max_parallelism - 1)
    with open_version(job.storage, uid=job.uid, range=groups) as reader:
        return {file.name for parent in reader.parents for file in parent.files}


def _rescaled(job: KeyedJob, new_job: NewJob) -> KeyedJob:
    for parallelism in (3, 1, 2):
        job.restart(parallelism=parallelism)
        job.do("other", ("n.update", parallelism))
    return _restarted(job, new_job)


def _forked(job: KeyedJob, new_job: NewJob) -> KeyedJob:
    query, _, _ = job.operator.partition("/")
    fork: KeyedJob = new_job(
        *job.descriptors, clock=job.clock, query=f"{query}-fork", restore=RestoreFrom(query)
    )
    fork.do("other", ("n.update", 1))
    return _restarted(fork, new_job)


_BETWEEN: list[Between] = [_restarted, _same_process, _compacted, _rescaled, _forked]


def _between(*changes: Between) -> pytest.MarkDecorator:
    """Run a row with some changes; a field that comes back has them all."""
    names = [one.__name__[1:] for one in changes]
    return pytest.mark.parametrize("between", changes, ids=names, indirect=True)


class GenerationTests(BackendSubject):
    """A field that a restart dropped does not come back, whatever happened to the files since."""

    @pytest.fixture
    def between(self, request: pytest.FixtureRequest) -> Between:
        """The change between two declarations, in addition to a restart."""
        one: Between = request.param
        return one

    @pytest.fixture
    def declared_in_turn(self, new_job: NewJob, between: Between) -> Callable[..., KeyedJob]:
        """Declare types one after another, each with a batch that does not touch ``old``."""

        def make(first: Any, value: Any, *later: Any) -> KeyedJob:
            job = new_job(*_states(first), ValueStateDescriptor("n", int))
            job.do("old", *_written(value))
            for number, declared in enumerate(later):
                job = between(job, new_job)
                job.descriptors = [*_states(declared), ValueStateDescriptor("n", int)]
                if number < len(later) - 1:
                    job.do("other", ("n.update", number))
            return job

        return make

    @pytest.mark.parametrize(
        ("between", "types", "value", "read"),
        [
            *(
                pytest.param(
                    between,
                    [record(id=int, x=int), record(id=int), record(id=int, x=(int, 0))],
                    (1, 42),
                    (1, 0),
                    id=f"a field that comes back, {between.__name__[1:]}",
                )
                for between in _BETWEEN
            ),
            pytest.param(
                _compacted,
                [record(id=int, x=(int, 0)), record(id=int), record(id=int, x=(int, 0))],
                (1, 42),
                (1, 0),
                id="a type that comes back",
            ),
            pytest.param(
                _compacted,
                [record(id=int, x=int), record(id=int), record(id=int, x=(str, "none"))],
                (1, 42),
                (1, "none"),
                id="a field that comes back with another type",
            ),
            pytest.param(
                _compacted,
                [
                    record(a=int),
                    record(b=Annotated[int, Alias("a")]),
                    record(c=Annotated[int, Alias("b")]),
                ],
                (3,),
                (3,),
                id="renamed twice with one alias each",
            ),
            pytest.param(
                _compacted,
                [record(id=int), record(id=int, x=(int, 1)), record(id=int, x=(int, 2))],
                (1,),
                (1, 1),
                id="another default",
            ),
            pytest.param(
                _compacted,
                [record(id=int), record(id=int, x=(int, 1)), record(id=int, x=int)],
                (1,),
                (1, 1),
                id="no default any more",
            ),
            pytest.param(
                _compacted,
                [record(id=int, x=int), record(id=int), record(id=float), record(id=float | None)],
                (1, 42),
                (1.0,),
                id="widened twice",
            ),
        ],
        indirect=["between"],
    )
    def test_data_read_as_if_every_declaration_had_written_them(
        self,
        declared_in_turn: Callable[..., KeyedJob],
        types: list[Any],
        value: Any,
        read: Any,
    ) -> None:
        first, *_, last = types
        job = declared_in_turn(first, first(*value), *types[1:])
        one = last(*read)
        assert job.do("old", *_READS) == [one, [one], one]
        new = attrs.evolve(one, **{attrs.fields(last)[-1].name: type(read[-1])(7)})
        job.do("new", *_written(new))
        job.do("old", ("l.add", new))
        assert job.peek(job.descriptors[0], "old") == one
        for same_process in (True, False):
            job.restart(same_process=same_process)
            assert job.do("old", *_READS) == [one, [one, new], one]
            assert job.do("new", *_READS) == [new, [new], new]

    @_between(_compacted, _rescaled)
    def test_each_generation_drops_its_own(self, new_job: NewJob, between: Between) -> None:
        with_x, without = record(id=int, x=(int, 0)), record(id=int)
        job = new_job(*_states(with_x), ValueStateDescriptor("n", int))
        written = []
        for number in range(5):
            declared = without if number % 2 else with_x
            if number:
                job = between(job, new_job)
            job.descriptors = [*_states(declared), ValueStateDescriptor("n", int)]
            value = declared(*[number + 7] * len(attrs.fields(declared)))
            job.do(str(number), *_written(value))
            written.append(number)
            expected = [with_x(key + 7, key + 7 if key == number else 0) for key in written]
            if declared is without:
                expected = [without(key + 7) for key in written]
            got = job.scripts([(str(key), _READS) for key in written])
            assert got == [[one, [one], one] for one in expected], number

    @_between(_same_process, _compacted, _forked)
    def test_with_ttl(self, new_job: NewJob, between: Between) -> None:
        full, bare = record(id=int, x=(int, 0)), record(id=int)
        ttl = StateTtlConfig(timedelta(seconds=10))
        job = new_job(*_states(full, ttl), ValueStateDescriptor("n", int))
        job.do("old", *_written(full(1, 42)))
        job.clock.advance(timedelta(seconds=6))
        for declared in (bare, full):
            job = between(job, new_job)
            job.descriptors = [*_states(declared, ttl), ValueStateDescriptor("n", int)]
            job.do("other", ("n.update", 1))
        assert job.do("old", *_READS) == [full(1, 0), [full(1, 0)], full(1, 0)]
        job.clock.advance(timedelta(seconds=5))
        assert job.do("old", *_READS) == [None, [], None], "each is as old as it was"

    def test_a_fork_from_another_backend(self, new_job: NewJob, storage: ObjectStorage) -> None:
        full, bare = record(id=int, x=(int, 0)), record(id=int)
        source = KeyedJob(ReferenceBackend, storage, descriptors=_states(full), query="source")
        source.do("old", *_written(full(1, 42)))
        source.restart()
        source.descriptors = _states(bare)
        source.do("newer", *_written(bare(2)))
        fork = new_job(
            *_states(full),
            query="fork",
            restore=RestoreFrom("source"),
            find_backend=lambda _: ReferenceBackend,
        )
        fork.do("newest", *_written(full(3, 7)))
        for key, one in (("old", full(1, 0)), ("newer", full(2, 0)), ("newest", full(3, 7))):
            fork.restart()
            assert fork.do(key, *_READS) == [one, [one], one]

    @_between(_same_process, _compacted)
    def test_what_is_deep_inside(self, declared_in_turn: Any) -> None:
        def holder(inner: Any) -> Any:
            return record(many=list[inner], by_name=dict[str, inner], one=(inner | None, None))

        full, bare = record(id=int, x=(list[int], attrs.Factory(list))), record(id=int)
        first, second = holder(full), holder(bare)
        value = first([full(1, [4])], {"a": full(2, [5])}, full(3, [6]))
        job = declared_in_turn(first, value, second, first)
        read = first([full(1, [])], {"a": full(2, [])}, full(3, []))
        got, elements, entry = job.do("old", *_READS)
        assert [got, *elements, entry] == [read] * 3
        got.many[0].x.append(9)
        assert job.do("old", *_READS)[0] == read

    def test_user_keys(self, new_job: NewJob) -> None:
        full, bare = record(id=int, x=(int, 0)), record(id=int)
        job = new_job(MapStateDescriptor("m", full, int))
        job.do("old", ("m.put", full(1, 42), 5))
        for declared in (bare, full):
            job.descriptors = [MapStateDescriptor("m", declared, int)]
            job.restart()
            job.do("new", ("m.put", declared(*[1] * len(attrs.fields(declared))), 6))
        assert job.do("old", ("m.items",)) == [[(full(1, 0), 5)]]
        assert job.do("new", ("m.get", full(1, 1))) == [6]
        assert job.do("old", ("m.get", full(1, 0)), ("m.get", full(1, 42))) == [5, None]

    @_between(_same_process, _compacted)
    @pytest.mark.parametrize("of", [record(x=int), float], ids=["record", "float"])
    def test_a_migration_that_is_not_declared_any_more_is_refused_at_once(
        self, declared_in_turn: Callable[..., KeyedJob], of: Any
    ) -> None:
        migrated, three = Annotated[of, MigratedFrom(int, of)], of(3)
        job = declared_in_turn(int, 3, migrated, of)
        with pytest.raises(StateMigrationError, match=r"'v', value: stored as int, declared as"):
            job.do("new", ("n.value",))
        job.descriptors = [*_states(migrated), ValueStateDescriptor("n", int)]
        job.restart()
        assert job.do("old", *_READS) == [three, [three], three]

    @_between(_same_process, _compacted)
    def test_a_field_that_comes_back_without_a_default_is_refused_at_once(
        self, declared_in_turn: Callable[..., KeyedJob]
    ) -> None:
        full, bare = record(id=int, x=int), record(id=int)
        job = declared_in_turn(full, full(1, 42), bare, full)
        with pytest.raises(StateMigrationError, match="'x' is not in the stored state"):
            job.do("new", ("n.value",))

    def test_a_state_that_is_not_declared_in_between(self, new_job: NewJob) -> None:
        full, bare = record(id=int, x=(int, 0)), record(id=int)
        job = new_job(*_states(full))
        job.do("old", *_written(full(1, 42)))
        for descriptors in ([], _states(bare), [], _states(full)):
            job.descriptors = [*descriptors, ValueStateDescriptor("n", int)]
            job.restart()
            job.do("other", ("n.update", 1))
        assert job.do("old", *_READS) == [full(1, 0), [full(1, 0)], full(1, 0)]
