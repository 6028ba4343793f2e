"""The kit finds what is wrong: backends that break the contract in one point each."""

from __future__ import annotations

import os
import subprocess
import sys

import attrs
import pytest

from forebay_state_api import ForebayError
from forebay_state_api.backend import Capability, Opening
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.testing import KeyedJob, conformance
from forebay_state_api.testing.conformance.rescale import RescaleTests
from forebay_state_api.testing.conformance.subject import memory_storage
from forebay_state_api.testing.conformance.tables import CommitTests, TableTests
from forebay_state_api.testing.conformance.versions import (
    MigrationTests,
    VerificationTests,
    VersionTests,
)
from forebay_state_api.testing.reference import ReferenceBackend, ReferenceScan, ReferenceTable


def with_table(table_class):
    class Broken(ReferenceBackend):
        def table(self, spec):
            table = super().table(spec)
            table.__class__ = table_class
            return table

    return Broken


class Reversed(ReferenceTable):
    """Answers in another order than it was asked."""

    def get_many(self, namespace, keys):
        return super().get_many(namespace, keys)[::-1]


class MovingScan(ReferenceScan):
    def __init__(self, table, namespace, key):
        self.table, self.where = table, (namespace, key)

    def pages(self, page_size):
        yield from ReferenceScan(self.table._content(*self.where, ()), 0).pages(page_size)


class Moving(ReferenceTable):
    """The view of a scan shows what is written later."""

    def scan(self, namespace, group, key):
        return MovingScan(self, namespace, key)


class OnePage(ReferenceTable):
    """Pages are as long as the content."""

    def scan(self, namespace, group, key):
        scan = super().scan(namespace, group, key)
        scan.pages = lambda _: iter([scan._elements])
        return scan


class Forgetful(ReferenceBackend):
    """Drops states that are not declared."""

    def commit(self, version):
        self._stored.clear()
        return super().commit(version)


class Greedy(ReferenceBackend):
    """Keeps what belongs to other subtasks."""

    @classmethod
    def open(cls, opening):
        whole = KeyGroupRange(0, 7)
        parents = [
            attrs.evolve(p, files=[attrs.evolve(f, range=whole) for f in p.files])
            for p in opening.parents
        ]
        return super().open(attrs.evolve(opening, parents=parents))


class Wasteful(ReferenceBackend):
    """Writes although nothing has changed."""

    def commit(self, version):
        for table in self._tables.values():
            table.changed = True
        return super().commit(version)


class Leaking(ReferenceBackend):
    """Lends the tables of a batch that was never committed to the next one."""

    kept = {}  # noqa: RUF012 - the fault

    def table(self, spec):
        key = (self._opening.path, spec.name)
        return self.kept.setdefault(key, super().table(spec))


class Tolerant(ReferenceBackend):
    """Begins anew where a file cannot be read."""

    @classmethod
    def open(cls, opening):
        try:
            return super().open(opening)
        except ForebayError:
            return cls(opening, {})


class Boastful(ReferenceBackend):
    """Claims to keep all cells in memory."""

    capabilities = Capability.RESIDENT


def opened(backend_class):
    storage = memory_storage()
    return backend_class.open(
        Opening(
            storage=storage,
            path=storage.url,
            uid="operator",
            version=0,
            range=KeyGroupRange(0, 7),
            parents=(),
            options={},
            now_us=0,
            cache_bytes=0,
        )
    )


def new_job_of(backend_class):
    def make(*descriptors, **more):
        storage = more.pop("storage", None) or memory_storage()
        return KeyedJob(backend_class, storage, descriptors=descriptors, **more)

    return make


def spread(new_job):
    return RescaleTests.spread.__wrapped__(RescaleTests(), new_job)


def counting(new_job):
    return VersionTests.counting.__wrapped__(VersionTests(), new_job)


FAULTS = [
    (with_table(Reversed), lambda b: TableTests().test_point_reads_answer_in_order(opened(b))),
    (with_table(Moving), lambda b: TableTests().test_the_view_of_a_scan_does_not_move(opened(b))),
    (
        with_table(OnePage),
        lambda b: TableTests().test_scans_come_in_pages_of_at_most_the_size(opened(b), 2),
    ),
    (
        Boastful,
        lambda b: TableTests().test_a_space_is_the_same_object_each_time(opened(b)),
    ),
    (
        Forgetful,
        lambda b: MigrationTests().test_state_that_is_no_longer_declared_is_kept(new_job_of(b)),
    ),
    (
        Greedy,
        lambda b: RescaleTests().test_each_key_is_counted_in_one_subtask(spread(new_job_of(b)), 2),
    ),
    (
        Wasteful,
        lambda b: CommitTests().test_when_nothing_changed_no_file_is_written(new_job_of(b)),
    ),
    (
        Leaking,
        lambda b: VersionTests().test_an_attempt_that_dies_before_its_commit_leaves_nothing(
            counting(new_job_of(b))
        ),
    ),
    (
        Tolerant,
        lambda b: VerificationTests().test_damaged_files_are_found(
            new_job_of(b), lambda: None, "altered"
        ),
    ),
]


@pytest.mark.parametrize(("backend", "test"), FAULTS, ids=lambda one: one.__name__)
def test_a_fault_fails_its_test(backend, test):
    test(ReferenceBackend)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test(backend)


def test_ten_lines_are_enough(tmp_path):
    """A third party's file: it is collected, capabilities count, and it passes."""
    (tmp_path / "test_mine.py").write_text(
        "import pytest\n"
        "from forebay_state_api.testing import StateBackendTests\n"
        "from forebay_state_api.testing.reference import ReferenceBackend as MyBackend\n"
        "class TestMyBackend(StateBackendTests):\n"
        "    @pytest.fixture\n"
        "    def backend_class(self):\n"
        "        return MyBackend\n"
        "class TestNothing(StateBackendTests):\n"
        "    pass\n"
    )
    chosen = "class_says or state_machine or test_then_apply"
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen, tmp_path],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
    )
    assert "TestNothing has to override the fixture backend_class" in result.stdout
    assert "3 passed" in result.stdout, result.stdout
    assert "3 errors" in result.stdout


def test_every_part_is_in_the_whole():
    parts = {
        name
        for module in conformance._PARTS
        for name, value in vars(sys.modules[f"{conformance.__name__}.{module}"]).items()
        if name.endswith("Tests") and isinstance(value, type)
    }
    assert parts == {base.__name__ for base in conformance.StateBackendTests.__bases__}


def test_no_test_hides_another_of_the_same_name():
    names = [
        name
        for part in conformance.StateBackendTests.__bases__
        for name in vars(part)
        if name.startswith("test_")
    ]
    assert len(names) == len(set(names))
    assert len(names) > 90
