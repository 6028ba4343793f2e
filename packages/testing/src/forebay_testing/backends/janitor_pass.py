"""Clearing deletes exactly the state that nobody can open any more, in files and elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from forebay_engine.versions import Janitor, RestoreFrom
from forebay_engine.versions.choosing.savepoints import create_savepoint
from forebay_engine.versions.format import layout
from forebay_engine.versions.format.manifest import is_named, read_manifest
from forebay_engine.versions.format.markers import list_version
from forebay_state_api.contract.backend import StateBackend
from forebay_state_api.contract.file_names import DATA, data_version, version_of
from forebay_state_api.contract.object_storage import ObjectInfo, ObjectStorage
from forebay_state_api.job.descriptors import ValueStateDescriptor
from forebay_state_api.storage import ForwardingStorage
from forebay_testing.backends.stored_cells import StoredCells
from forebay_testing.backends.subject import BackendSubject, NewJob
from forebay_testing.job import KeyedJob

_BATCHES = 20


class _Interrupted(ForwardingStorage):
    """Calls ``meanwhile`` once, after the first listing."""

    def __init__(self, inner: ObjectStorage, meanwhile: Callable[[], object]) -> None:
        super().__init__(inner)
        self.meanwhile = [meanwhile]

    def list(self, prefix: str = "") -> list[ObjectInfo]:
        listed = super().list(prefix)
        if self.meanwhile:
            self.meanwhile.pop()()
        return listed


class ClearingTests(BackendSubject):
    """The janitor's pass, and `StateBackend.clear` after it."""

    def test_what_is_stored_does_not_grow_with_the_batches(
        self,
        new_job: NewJob,
        backend_class: type[StateBackend],
        backend_options: Mapping[str, Any],
        stored_cells: StoredCells,
    ) -> None:
        job = new_job(ValueStateDescriptor("v", int), parallelism=2)
        counts = []
        for number in range(_BATCHES):
            job.scripts([(key, [("v.update", number)]) for key in "abcdef"])
            _clear(job, backend_class, backend_options)
            counts.append(len(stored_cells.pieces(job.storage)))
        half = _BATCHES // 2
        limit = f"after {half} batches no more pieces are stored than the most until then"
        assert max(counts[half:]) <= max(counts[:half]), f"{limit}: {counts}"
        job.restart()
        assert job.scripts([(key, [("v.value",)]) for key in "abcdef"]) == [[_BATCHES - 1]] * 6

    def test_a_manifest_names_files_of_its_version_and_what_its_parents_named(
        self, new_job: NewJob
    ) -> None:
        """`CommittedState` promises it; the janitor reads few manifests because of it."""
        job = new_job(ValueStateDescriptor("v", int), parallelism=2)
        named: dict[str, frozenset[str]] = {}
        for number in range(_BATCHES):
            if number == _BATCHES // 2:
                job.restart(parallelism=3)
            job.scripts([(key, [("v.update", number)]) for key in "abcdef"])
            for made in list_version(job.storage, job.batch_id).manifests:
                manifest = read_manifest(job.storage, made.name)
                before = frozenset[str]().union(*(named[parent] for parent in manifest.parents))
                named[manifest.id] = manifest.names
                older = [n for n in manifest.names if data_version(n) != manifest.made.version]
                assert [name for name in older if not is_named(name, before)] == []

    def test_nothing_is_left_of_restarted_runs(
        self,
        new_job: NewJob,
        backend_class: type[StateBackend],
        backend_options: Mapping[str, Any],
    ) -> None:
        """Files of compactions and background work of earlier runs are deleted, too."""
        job = new_job(ValueStateDescriptor("v", int), parallelism=2)
        job.scripts([(f"{key}", [("v.update", 0)]) for key in range(60)])
        for number in range(_BATCHES):
            job.scripts([(f"{key}", [("v.update", number)]) for key in range(10)])
            if number % 3 == 2:
                job.restart()
        _clear(job, backend_class, backend_options)
        base = _clear(job, backend_class, backend_options)
        versions = {info.name.split("/")[1] for info in job.storage.list(layout.VERSIONS)}
        named = frozenset[str]().union(
            *(
                read_manifest(job.storage, made.name).names
                for version in versions
                for made in list_version(job.storage, version_of(version) or 0).manifests
            )
        )
        files = [info.name for info in job.storage.list(DATA)]
        below = [name for name in files if (data_version(name) or 0) < base]
        assert [name for name in below if not is_named(name, named)] == []
        job.restart()
        assert job.scripts([(f"{key}", [("v.value",)]) for key in (0, 59)]) == [[19], [0]]

    def test_savepoints_and_forks_keep_what_they_need(
        self,
        new_job: NewJob,
        backend_class: type[StateBackend],
        backend_options: Mapping[str, Any],
    ) -> None:
        job = new_job(ValueStateDescriptor("v", int))
        job.do("k", ("v.update", 1))
        create_savepoint(job.storage, "kept", uid=job.uid)
        restore = RestoreFrom("query", savepoint="kept")
        fork = new_job(ValueStateDescriptor("v", int), query="fork", restore=restore)
        fork.do("k", ("v.value",))
        for number in range(_BATCHES):
            job.do("k", ("v.update", number))
            if number % 4 == 3:
                _clear(job, backend_class, backend_options)
        fork.restart()
        assert fork.do("k", ("v.value",)) == [1]
        again = new_job(ValueStateDescriptor("v", int), query="again", restore=restore)
        assert again.do("k", ("v.value",)) == [1]

    def test_a_commit_made_meanwhile_stays(
        self,
        new_job: NewJob,
        backend_class: type[StateBackend],
        backend_options: Mapping[str, Any],
    ) -> None:
        job = new_job(ValueStateDescriptor("v", int))
        job.do("k", ("v.update", 1))
        storage = _Interrupted(job.storage, lambda: job.do("k", ("v.update", 2)))
        backend_class.clear(storage, backend_options, retry_budget_s=0.0)
        job.restart()
        assert job.do("k", ("v.value",)) == [2 if not storage.meanwhile else 1]


def _clear(
    job: KeyedJob, backend_class: type[StateBackend], backend_options: Mapping[str, Any]
) -> int:
    """Run one pass over everything older than the version before the newest; return the base."""
    janitor = Janitor(job.storage, run_key=job.run_key, retention=1, min_age=timedelta(0))
    done = janitor.sweep(job.batch_id)
    backend_class.clear(job.storage, backend_options, retry_budget_s=0.0)
    return done.base
