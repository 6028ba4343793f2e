"""Cache warming: a worker catches up with siblings between tasks, and survives failures."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from forebay_engine.execution.subtask_metrics import SubtaskMetrics
from forebay_spark_runtime.worker_process import catching_up, operator_task
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
    monkeypatch.setattr(catching_up, "_PAUSES_S", (0, 0, 0))


@pytest.fixture
def thread():
    made = catching_up.CatchUpThread()
    yield made
    made.pool.close()


@pytest.fixture
def catch_up_with(thread):
    return thread.catch_up_with


@pytest.mark.parametrize("siblings", [None, FakeSiblings(0)])
def test_where_nothing_is_behind_no_thread_begins(thread, catch_up_with, siblings):
    catch_up_with(siblings)
    assert not thread.pool._threads


def test_without_a_thread_the_next_commit_tries_again(thread, catch_up_with, done, monkeypatch):
    def refused(_):
        message = "can't start new thread"
        raise RuntimeError(message)

    siblings = FakeSiblings(1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        catch_up_with(siblings)
    assert siblings.looks == 0
    catch_up_with(siblings)
    done(thread.pool)
    assert siblings.looks == 1


def test_it_looks_until_all_have_committed(thread, catch_up_with, done):
    siblings = FakeSiblings(2)
    catch_up_with(siblings)
    done(thread.pool)
    assert (siblings.looks, siblings.behind) == (2, False)


def test_it_does_not_wait_for_ever(thread, catch_up_with, done):
    siblings = FakeSiblings(99)
    catch_up_with(siblings)
    done(thread.pool)
    assert siblings.looks == 3


def test_the_subtasks_of_a_process_share_one_thread_and_the_last_one_counts(
    thread, catch_up_with, done
):
    """Otherwise each of n subtasks would list the versions of all n."""
    first, second, last = Waiting(99), FakeSiblings(99), FakeSiblings(1)
    other = FakeSiblings(1, path="another operator")
    catch_up_with(first)
    assert first.reached.wait(100)
    for one in (second, last, other):
        catch_up_with(one)
    assert len(thread.pool._threads) == 1
    first.go_on.set()
    done(thread.pool)
    assert [one.looks for one in (first, second, last, other)] == [1, 0, 1, 1]


def test_the_next_commit_begins_another_thread(thread, catch_up_with, done):
    first, second = FakeSiblings(1), FakeSiblings(1)
    for siblings in (first, second):
        catch_up_with(siblings)
        done(thread.pool)
    assert (first.looks, second.looks) == (1, 1)


def test_while_tasks_go_on_committing_it_waits_but_not_for_ever(monkeypatch):
    thread = catching_up.CatchUpThread()
    monkeypatch.setattr(catching_up, "_PATIENCE_S", 0)
    thread._commits = 5
    waits = iter([True, True])

    def wait_for(moved, pause_s):
        thread._commits += next(waits)
        return moved()

    monkeypatch.setattr(thread._changed, "wait_for", wait_for, raising=False)
    assert thread._await_quiet(0.05)


def test_a_failure_is_logged(thread, catch_up_with, done, caplog):
    catch_up_with(FakeSiblings(2, StorageError("the store is away")))
    done(thread.pool)
    assert "the store is away" in caplog.text
    siblings = FakeSiblings(1)
    catch_up_with(siblings)
    done(thread.pool)
    assert siblings.looks == 1


def test_each_commit_is_followed(monkeypatch):
    followed = []
    monkeypatch.setattr(operator_task, "catch_up_with", followed.append)
    operator = operator_task.OperatorTask.__new__(operator_task.OperatorTask)
    operator._versions, operator._subtask_metrics = None, SubtaskMetrics()
    task = SimpleNamespace(uid="op", batch_id=0, subtask=0)
    done = [SimpleNamespace(figures={})]
    operator.commit(SimpleNamespace(task=task, commit=done.pop, siblings=lambda: list(done)))
    assert followed == [[]], "what siblings have is asked for after the commit"
