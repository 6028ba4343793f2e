"""Threads of a process that has as many as it may have: who works then, and who says so."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError

import pytest

from forebay_state_api.engine.loop_thread import LoopThread
from forebay_state_api.errors import NoThreadError
from forebay_state_api.threads import ReadThreads, start_thread

PATIENCE_S = 100.0


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Refuse new threads until it is undone."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    return monkeypatch


@pytest.fixture
def reads() -> Iterator[ReadThreads]:
    made = ReadThreads(4, "reads")
    yield made
    made.shutdown()


def test_an_error_names_the_thread_and_the_limit(limit: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoThreadError, match=r"thread mine could not .*ulimit -u"):
        start_thread(threading.Thread(name="mine"))


def test_the_loop_s_thread_may_be_started_later(limit: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoThreadError, match="loop"):
        LoopThread()
    limit.undo()
    assert LoopThread().call(int) == 0


def test_reads_run_on_threads(reads: ReadThreads) -> None:
    name = reads.submit(lambda: threading.current_thread().name).result()
    assert name.startswith("reads")
    assert list(reads.map(abs, [-1, -2])) == [1, 2]


def test_without_a_thread_the_caller_reads_once(
    limit: pytest.MonkeyPatch, reads: ReadThreads
) -> None:
    """The pool keeps the calls for which it had no thread; none of them is repeated later."""
    read: list[object] = []
    for number in range(3):
        reads.submit(read.append, number).result()
    assert read == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        reads.submit(lambda: 1 / 0).result()
    limit.undo()
    assert reads.submit(lambda: threading.current_thread().name).result().startswith("reads")
    reads.shutdown()
    assert read == [0, 1, 2]


def test_where_one_thread_is_left_each_read_is_made_once(
    request: pytest.FixtureRequest, reads: ReadThreads
) -> None:
    read: list[object] = []
    go = threading.Event()
    busy = reads.submit(go.wait, PATIENCE_S)
    request.getfixturevalue("limit")
    assert reads.submit(read.append, 1).done()
    go.set()
    assert busy.result()
    for number in range(2, 50):
        reads.submit(read.append, number).result()
    reads.shutdown()
    assert read == list(range(1, 50))


def test_reads_that_are_cancelled_or_too_late(reads: ReadThreads) -> None:
    go, began = threading.Event(), [threading.Event() for _ in range(4)]

    def busy(event: threading.Event) -> None:
        event.set()
        go.wait(PATIENCE_S)

    for event in began:
        reads.submit(busy, event)
    assert all(event.wait(PATIENCE_S) for event in began)
    waiting = reads.submit(int)
    reads.shutdown(wait=False, cancel_futures=True)
    go.set()
    with pytest.raises(CancelledError):
        waiting.result(PATIENCE_S)
    with pytest.raises(RuntimeError, match="shutdown"):
        reads.submit(int)
