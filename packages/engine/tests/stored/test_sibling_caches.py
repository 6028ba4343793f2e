"""A process updates its copies of a subtask's siblings once they have committed."""

from __future__ import annotations

import pytest

from forebay_state_api import KeyedProcessFunction, ValueStateDescriptor
from forebay_state_api.keys import key_group_range_of
from forebay_testing import KeyedJob
from forebay_testing.backends.subject import memory_storage
from forebay_testing.reference import ReferenceBackend

FIRST, SECOND = (key_group_range_of(subtask, 2, 8) for subtask in range(2))


class Keeping(ReferenceBackend):
    ranges = ()
    openings = ()

    @classmethod
    def cached_ranges(cls, path, version):
        return cls.ranges

    @classmethod
    def catch_up(cls, opening):
        cls.openings = (*cls.openings, opening)


class Counting(KeyedProcessFunction):
    def open(self, context):
        self.v = context.get_state(ValueStateDescriptor("v", int, default=0))

    def process_element(self, row, ctx):
        self.v.update(self.v.value() + 1)
        return []


@pytest.fixture
def job():
    Keeping.ranges, Keeping.openings = (FIRST, SECOND), ()
    return KeyedJob(Keeping, memory_storage(), parallelism=2)


def committed(job, subtask):
    """Commit a subtask of the next micro-batch; return its siblings and its report."""
    with job.subtask(Counting(), subtask) as running:
        report = running.commit()
        return running.siblings(), report


def test_a_sibling_is_brought_along_when_it_has_committed(job):
    job.run(Counting(), [("k",), ("l",), ("m",)])
    siblings, _ = committed(job, 0)
    siblings.catch_up()
    assert siblings.behind
    assert Keeping.openings == ()
    _, report = committed(job, 1)
    siblings.catch_up()
    assert not siblings.behind
    (opening,) = Keeping.openings
    assert (opening.range, opening.version) == (SECOND, 2)
    (parent,) = opening.parents
    assert (parent.manifest_id, parent.whole) == (report.manifest_id, True)


def test_of_several_attempts_the_newest_one_counts(job):
    job.run(Counting(), [("k",)])
    committed(job, 1)
    _, newest = committed(job, 1)
    siblings, _ = committed(job, 0)
    siblings.catch_up()
    assert Keeping.openings[0].parents[0].manifest_id == newest.manifest_id


def test_what_another_run_makes_does_not_count(job):
    job.run(Counting(), [("k",)])
    committed(job, 1)
    job.restart()
    siblings, _ = committed(job, 0)
    siblings.catch_up()
    assert siblings.behind


def test_who_keeps_no_sibling_has_none_behind(job):
    Keeping.ranges = (FIRST,)
    siblings, _ = committed(job, 0)
    assert not siblings.behind


def test_backends_keep_nothing_unless_they_say_so(job):
    job.backend_class = ReferenceBackend
    siblings, _ = committed(job, 0)
    assert not siblings.behind
