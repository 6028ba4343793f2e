"""Cache warming: a worker catches up with siblings between tasks, and survives failures."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from forebay_engine.execution.subtask_metrics import Measures
from forebay_spark_runtime.worker_process import cache_warming, operator_task
from forebay_state_api.errors import StorageError


class FakeSiblings:
    """Siblings that commit one after the other, each before a look."""

    def __init__(self, left, fault=None, path="operator"):
        self.left = left
        self.fault = fault
        self.path = path
        self.looks = 0

    @property
    def behind(self):
        return self.left > 0

    def catch_up(self):
        self.looks += 1
        self.left -= 1
        if self.fault:
            raise self.fault


class Waiting(FakeSiblings):
    """Holds the thread at its first look."""

    def __init__(self, left):
        super().__init__(left)
        self.reached, self.go_on = threading.Event(), threading.Event()

    def catch_up(self):
        super().catch_up()
        self.reached.set()
        assert self.go_on.wait(100)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(cache_warming, "_PAUSES_S", (0, 0, 0))


@pytest.fixture
def warmer():
    made = cache_warming.CacheWarmer()
    yield made
    made.pool.close()


@pytest.fixture
def keep_warm(warmer):
    return warmer.keep_warm


@pytest.mark.parametrize("siblings", [None, FakeSiblings(0)])
def test_where_nothing_is_behind_no_thread_begins(warmer, keep_warm, siblings):
    keep_warm(siblings)
    assert not warmer.pool._threads


def test_without_a_thread_the_next_commit_tries_again(warmer, keep_warm, done, monkeypatch):
    def refused(thread):
        message = "can't start new thread"
        raise RuntimeError(message)

    siblings = FakeSiblings(1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        keep_warm(siblings)
    assert siblings.looks == 0
    keep_warm(siblings)
    done(warmer.pool)
    assert siblings.looks == 1


def test_it_looks_until_all_have_committed(warmer, keep_warm, done):
    siblings = FakeSiblings(2)
    keep_warm(siblings)
    done(warmer.pool)
    assert (siblings.looks, siblings.behind) == (2, False)


def test_it_does_not_wait_for_ever(warmer, keep_warm, done):
    siblings = FakeSiblings(99)
    keep_warm(siblings)
    done(warmer.pool)
    assert siblings.looks == 3


def test_the_subtasks_of_a_process_share_one_thread_and_the_last_one_counts(
    warmer, keep_warm, done
):
    """Otherwise each of n subtasks would list the versions of all n."""
    first, second, last = Waiting(99), FakeSiblings(99), FakeSiblings(1)
    other = FakeSiblings(1, path="another operator")
    keep_warm(first)
    assert first.reached.wait(100)
    for one in (second, last, other):
        keep_warm(one)
    assert len(warmer.pool._threads) == 1
    first.go_on.set()
    done(warmer.pool)
    assert [one.looks for one in (first, second, last, other)] == [1, 0, 1, 1]


def test_the_next_commit_begins_another_thread(warmer, keep_warm, done):
    first, second = FakeSiblings(1), FakeSiblings(1)
    for siblings in (first, second):
        keep_warm(siblings)
        done(warmer.pool)
    assert (first.looks, second.looks) == (1, 1)


def test_while_tasks_go_on_committing_it_waits_but_not_for_ever(monkeypatch):
    warmer = cache_warming.CacheWarmer()
    monkeypatch.setattr(cache_warming, "_PATIENCE_S", 0)
    warmer._commits = 5
    waits = iter([True, True])

    def wait_for(moved, pause_s):
        warmer._commits += next(waits)
        return moved()

    monkeypatch.setattr(warmer._changed, "wait_for", wait_for, raising=False)
    assert warmer._await_quiet(0.05)


def test_a_failure_is_logged(warmer, keep_warm, done, caplog):
    keep_warm(FakeSiblings(2, StorageError("the store is away")))
    done(warmer.pool)
    assert "the store is away" in caplog.text
    siblings = FakeSiblings(1)
    keep_warm(siblings)
    done(warmer.pool)
    assert siblings.looks == 1


def test_each_commit_is_followed(monkeypatch):
    followed = []
    monkeypatch.setattr(operator_task, "keep_warm", followed.append)
    operator = operator_task.OperatorTask.__new__(operator_task.OperatorTask)
    operator._versions, operator._measures = None, Measures()
    task = SimpleNamespace(uid="op", batch_id=0, subtask=0)
    done = [SimpleNamespace(figures={})]
    operator.commit(SimpleNamespace(task=task, commit=done.pop, siblings=lambda: list(done)))
    assert followed == [[]], "what siblings have is asked for after the commit"
