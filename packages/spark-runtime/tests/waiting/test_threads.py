"""Plain functions on real threads, which wait for each other instead of for time."""

from __future__ import annotations

import asyncio
import threading

import pytest

from forebay_engine.calls.current_call import current_call
from forebay_spark_runtime.waiting.answer_window import RowSegment
from forebay_spark_runtime.waiting.engine import CallEngine
from forebay_spark_runtime.waiting.input_reader import InputReader
from forebay_spark_runtime.waiting.process_loop import ProcessLoop
from forebay_spark_runtime.waiting.threads import ThreadedFunction
from forebay_state_api.calls.policies import CallPolicy
from forebay_state_api.errors import FunctionError, NoThreadError


def run(fn, rows, *, patience=None, **policy):
    """Return the answers of an engine whose function runs on threads."""
    out = []

    async def main():
        checked = CallPolicy(**{"capacity": 4, **policy})
        threads = ThreadedFunction(fn, checked.capacity, patience)
        engine = CallEngine(
            threads,
            checked,
            emit=lambda segment, positions: out.extend(segment.answers),
            ready=threads.ready,
        )
        engine.input_queue.push(RowSegment(0, list(rows)))
        engine.input_queue.end()
        try:
            await engine.run()
        finally:
            threads.close()

    asyncio.run(main())
    return out


def test_so_many_calls_run_at_once():
    barrier = threading.Barrier(4, timeout=100)
    threads = set()

    def fn(row, client):
        threads.add(threading.current_thread().ident)
        barrier.wait()  # breaks unless four calls wait
        return row

    assert run(fn, range(40)) == list(range(40))
    assert len(threads) == 4


def test_threads_are_started_as_they_are_needed():
    threads = set()

    def fn(row, client):
        threads.add(threading.current_thread().ident)
        return row

    assert run(fn, [1]) == [1]
    assert len(threads) == 1


def test_the_call_at_hand_is_known_on_the_thread():
    def fn(row, client):
        return current_call().key, current_call().attempt

    assert run(fn, range(3)) == [("0", 1), ("1", 1), ("2", 1)]


@pytest.mark.long
def test_a_call_out_of_time_keeps_its_thread_and_no_more():
    """Row 0 blocks one of two threads; the other thread makes the other calls."""
    gate, late = threading.Event(), []

    def fn(row, client):
        if row == 0:
            gate.wait(100)
            late.append(current_call().key)
        return row

    def on_error(row, error, tries):
        return type(error).__name__

    out = run(fn, range(10), capacity=2, try_timeout=2.0, on_error=on_error)
    assert out == ["TimeoutError", *range(1, 10)]
    gate.set()


def test_when_all_threads_are_kept_the_batch_fails():
    gate = threading.Event()

    def fn(row, client):
        gate.wait(100)

    with pytest.raises(FunctionError, match="all 2 threads are taken by calls that ran out of"):
        run(
            fn,
            range(10),
            capacity=2,
            try_timeout=0.02,
            on_error=lambda row, error, tries: None,
            patience=0.05,
        )
    gate.set()


def test_a_process_that_can_start_no_thread_says_so_and_may_try_again(monkeypatch):
    def refused(thread):
        message = "can't start new thread"
        raise RuntimeError(message)

    reader = InputReader((), None, None, None, None)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        for start, name in [
            (lambda: run(lambda row, client: row, [1]), "forebay-call"),
            (ProcessLoop, "forebay-calls"),
            (reader.start, "forebay-input"),
        ]:
            with pytest.raises(NoThreadError, match=f"thread {name} could not be started"):
                start()
    assert run(lambda row, client: row, [1]) == [1]
    ProcessLoop().close()


@pytest.mark.parametrize("error", [ValueError("no"), StopIteration(), SystemExit(3)])
def test_errors_of_a_thread_are_the_call_s(error):
    def fn(row, client):
        raise error

    with pytest.raises((FunctionError, SystemExit)):
        run(fn, [0])


def test_a_plain_function_that_returns_a_coroutine_is_refused():
    async def inner():
        return 1

    with pytest.raises(FunctionError, match="define it with async def"):
        run(lambda row, client: inner(), [0])
