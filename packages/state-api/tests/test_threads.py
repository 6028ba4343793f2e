"""Threads of a process that has as many as it may have: who works then, and who says so."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import resource
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from forebay_engine.execution import loop_thread
from forebay_engine.execution.awaitables import loop_of_thread
from forebay_engine.execution.loop_thread import LoopThread
from forebay_state_api.errors import NoThreadError, StorageError
from forebay_state_api.threads import PerProcess, ReadThreads, new_loop, start_thread

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


def test_a_forked_process_makes_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made = PerProcess(object)
    assert made.made is None
    first = made()
    assert made.made is made() is first
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert made.made is None
    second = made()
    assert second is not first
    assert made() is second


def test_what_could_not_be_made_is_made_by_a_later_call(limit: pytest.MonkeyPatch) -> None:
    made = PerProcess(LoopThread)
    with pytest.raises(NoThreadError):
        made()
    limit.undo()
    assert made().call(int) == 0


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


def no_descriptors() -> asyncio.AbstractEventLoop:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_without_descriptors_a_loop_is_a_storage_error_that_names_the_limit() -> None:
    with pytest.raises(StorageError, match=r"Too many open files.*ulimit -n") as caught:
        new_loop(no_descriptors)
    assert caught.value.transient


def test_a_loop_thread_without_descriptors_raises_where_it_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_thread, "loop_of_thread", lambda: new_loop(no_descriptors))
    with pytest.raises(StorageError, match="event loop"):
        LoopThread()


# The destructor of a loop that asyncio has made by half fails.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("left", range(4))
def test_a_function_that_awaits_without_descriptors(left: int) -> None:
    """In a thread of its own: the loop of a thread stays open."""
    found: list[BaseException] = []

    def work() -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        used = max(int(one.name) for one in Path("/proc/self/fd").iterdir())
        held: list[int] = []
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, limit[1]))
        try:
            with contextlib.suppress(OSError):
                while True:
                    held.append(os.open(os.devnull, os.O_RDONLY))
            for descriptor in held[:left]:
                os.close(descriptor)
            del held[:left]
            loop = loop_of_thread()
            assert loop is not None
            loop.close()
        except BaseException as error:  # noqa: BLE001 - what the test looks at
            found.append(error)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
            for descriptor in held:
                os.close(descriptor)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    gc.collect()
    assert [type(error) for error in found] == ([StorageError] if left < 3 else [])
