"""The pool of daemon threads: order, limits, failures, and processes that end."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from forebay_state_api import daemons
from forebay_state_api.daemons import DaemonPool

PATIENCE_S = 30.0


@pytest.fixture
def go() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def alive(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_work_is_done_in_the_order_given_and_answers_come_back() -> None:
    pool, done = DaemonPool("in-order"), []
    futures = [pool.submit(lambda n=n: done.append(n) or n) for n in range(20)]  # type: ignore[misc]
    assert [future.result(PATIENCE_S) for future in futures] == list(range(20)) == done


def test_so_many_threads_as_there_is_work_and_no_more_than_allowed(go: threading.Event) -> None:
    pool = DaemonPool("limited", most=3)
    assert not alive("limited")
    pool.do(lambda: go.wait(PATIENCE_S))
    assert len(alive("limited")) == 1
    futures = [pool.submit(lambda: go.wait(PATIENCE_S)) for _ in range(5)]
    assert len(alive("limited")) == 3
    go.set()
    assert all(future.result(PATIENCE_S) for future in futures)


def test_a_thread_without_work_ends_and_another_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemons, "_IDLE_S", 0.0)
    pool = DaemonPool("idle")
    for number in range(50):
        assert pool.submit(lambda n=number: n).result(PATIENCE_S) == number  # type: ignore[misc]
    for thread in alive("idle"):
        thread.join(PATIENCE_S)
    assert not alive("idle")


def test_failures_are_logged_or_the_futures(caplog: pytest.LogCaptureFixture) -> None:
    pool = DaemonPool("failing")
    pool.do(lambda: 1 / 0)
    with pytest.raises(KeyError):
        pool.submit(lambda: {}["a"]).result(PATIENCE_S)
    assert "work of failing failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


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
        "from forebay_state_api.daemons import DaemonPool\n"
        "began = threading.Event()\n"
        "DaemonPool('hangs').do(lambda: (began.set(), threading.Event().wait()))\n"
        "began.wait()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
