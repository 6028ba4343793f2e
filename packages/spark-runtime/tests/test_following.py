"""Between tasks, a worker keeps up with its siblings, and breaks nothing if it cannot."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from forebay_spark_runtime import following, subtasks
from forebay_state_api.errors import StorageError


class Siblings:
    """They commit one after the other, each before a look at them."""

    def __init__(self, left, fault=None):
        self.left = left
        self.fault = fault
        self.looks = 0

    @property
    def behind(self):
        return self.left > 0

    def catch_up(self):
        self.looks += 1
        self.left -= 1
        if self.fault:
            raise self.fault


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch):
    monkeypatch.setattr(following, "_PAUSES_S", (0, 0, 0))


@pytest.mark.parametrize("siblings", [None, Siblings(0)])
def test_where_nothing_is_behind_no_thread_begins(siblings):
    assert following.follow(siblings) is None


def test_it_looks_until_all_have_committed():
    siblings = Siblings(2)
    thread = following.follow(siblings)
    assert thread.daemon
    thread.join(30)
    assert (siblings.looks, siblings.behind) == (2, False)


def test_it_does_not_wait_for_ever():
    siblings = Siblings(99)
    following.follow(siblings).join(30)
    assert siblings.looks == 3


def test_a_failure_is_logged(caplog):
    following.follow(Siblings(2, StorageError("the store is away"))).join(30)
    assert "the store is away" in caplog.text


def test_each_commit_is_followed(monkeypatch):
    followed = []
    monkeypatch.setattr(subtasks, "follow", followed.append)
    operator = subtasks.OperatorTask.__new__(subtasks.OperatorTask)
    operator._versions = None
    task = SimpleNamespace(uid="op", subtask=0)
    done = ["commit"]
    operator.commit(SimpleNamespace(task=task, commit=done.pop, siblings=lambda: list(done)))
    assert followed == [[]], "what siblings have is asked for after the commit"
