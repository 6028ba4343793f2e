"""The pool of daemon threads: order, limits, failures, and processes that exit."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from forebay_state_api.daemon_pool import DaemonPool
from forebay_state_api.errors import NoThreadError

PATIENCE_S = 100.0


@pytest.fixture
def go() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def alive(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def settled(pool: DaemonPool) -> None:
    """Wait until a pool of one thread has done all its work."""
    done = threading.Event()
    pool.do(done.set)
    assert done.wait(PATIENCE_S)


def test_work_is_done_in_the_order_given() -> None:
    pool, done = DaemonPool("in-order"), []
    for number in range(20):
        pool.do(functools.partial(done.append, number))
    settled(pool)
    assert done == list(range(20))
    pool.close()


def test_so_many_threads_as_there_is_work_and_no_more_than_allowed(go: threading.Event) -> None:
    pool = DaemonPool("limited", most=3)
    assert not alive("limited")
    pool.do(go.wait)
    assert len(alive("limited")) == 1
    for _ in range(5):
        pool.do(go.wait)
    assert len(alive("limited")) == 3
    go.set()
    pool.close(PATIENCE_S)
    assert not alive("limited")


def test_a_failure_is_logged_and_the_thread_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    pool = DaemonPool("failing")
    pool.do(lambda: 1 / 0)
    pool.do(sys.exit)
    settled(pool)
    assert caplog.text.count("work of failing failed") == 2
    assert "ZeroDivisionError" in caplog.text
    pool.close()


@pytest.fixture
def no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)


def test_without_any_thread_work_is_refused_and_later_work_is_done(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool, done = DaemonPool("refused"), []
    request.getfixturevalue("no_more_threads")
    with pytest.raises(NoThreadError, match=r"thread refused could not .*: can't start new thread"):
        pool.do(lambda: done.append(1))
    assert not pool.do_if_possible(lambda: done.append(1))
    assert "work of refused is left out for now" in caplog.text
    monkeypatch.undo()
    assert pool.do_if_possible(lambda: done.append(2))
    settled(pool)
    assert done == [2]
    pool.close(PATIENCE_S)


def test_a_thread_that_cannot_be_started_leaves_its_work_to_the_others(
    request: pytest.FixtureRequest, go: threading.Event
) -> None:
    pool, done = DaemonPool("fewer", most=3), threading.Event()
    pool.do(go.wait)
    request.getfixturevalue("no_more_threads")
    pool.do(done.set)
    go.set()
    assert done.wait(PATIENCE_S)
    pool.close(PATIENCE_S)
    assert not alive("fewer")


def test_after_the_end_nothing_begins(go: threading.Event) -> None:
    pool, done, began = DaemonPool("closed"), [], threading.Event()

    def first() -> None:
        began.set()
        go.wait(PATIENCE_S)
        done.append(1)

    pool.do(first)
    pool.do(lambda: done.append(2))
    assert began.wait(PATIENCE_S)
    closing = threading.Thread(target=pool.close, args=(PATIENCE_S,))
    closing.start()
    go.set()
    closing.join(PATIENCE_S)
    pool.do(lambda: done.append(3))
    assert done == [1]
    assert not alive("closed")


def test_a_process_ends_while_work_hangs() -> None:
    code = (
        "import threading\n"
        "from forebay_state_api.daemon_pool import DaemonPool\n"
        "began = threading.Event()\n"
        "DaemonPool('hangs').do(lambda: (began.set(), threading.Event().wait()))\n"
        "began.wait()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)
