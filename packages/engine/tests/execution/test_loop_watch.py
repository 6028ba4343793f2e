"""A loop that synchronous code blocks is reported, once, with the stack."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from forebay_engine.execution import loop_watch
from forebay_state_api.user_frames import users_stack
from forebay_testing import FunctionHarness

pytestmark = pytest.mark.long

ROWS = [{"k": "calls"}, {"k": "blocks"}]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_watch, "BLOCKED_S", 0.05)
    monkeypatch.setattr(loop_watch, "_warned", set())


SEEN: list[pytest.LogCaptureFixture] = []


def until_warned() -> None:
    end = time.monotonic() + 100
    while "synchronous code" not in SEEN[-1].text and time.monotonic() < end:
        time.sleep(0.01)  # this is the code that blocks


async def blocks(row: Any, ctx: Any) -> None:
    await asyncio.sleep(0.01)
    if row["k"] == "blocks":
        until_warned()
    else:
        await asyncio.sleep(0.05)


def test_code_that_blocks_the_loop_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    SEEN.append(caplog)
    with FunctionHarness(blocks, "k", uid="slow") as harness:
        harness.process(ROWS)
        (message,) = (text for text in caplog.messages if "synchronous code" in text)
        assert "operator 'slow': synchronous code has run for more than" in message
        assert "in until_warned" in message
        assert "in blocks" in message
        caplog.clear()
        harness._job._fresh = lambda _: _blocks_shortly
        harness.process(ROWS)
        assert "synchronous code" not in caplog.text


async def _blocks_shortly(row: Any, ctx: Any) -> None:
    await asyncio.sleep(0.01)
    if row["k"] == "blocks":
        time.sleep(0.3)  # noqa: ASYNC251 - this is the code that blocks
    else:
        await asyncio.sleep(0.05)


def test_code_that_waits_is_no_code_that_blocks(caplog: pytest.LogCaptureFixture) -> None:
    async def waits(row: Any, ctx: Any) -> None:
        await asyncio.sleep(0.3)

    with FunctionHarness(waits, "k", uid="patient") as harness:
        harness.process(ROWS)
    assert "synchronous code" not in caplog.text


class Watched:
    """A subtask whose loop does not turn, as a watch sees it."""

    in_flight = 1
    must_stop_at = None

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.loop = SimpleNamespace(call_soon_threadsafe=lambda _: None)
        self.scheduler = SimpleNamespace(context=SimpleNamespace(operator_uid="slow"))


@pytest.fixture
def blocked() -> Iterator[int]:
    """A thread in which code of the user's waits."""
    waiting, ended = threading.Event(), threading.Event()

    def work() -> None:
        waiting.set()
        ended.wait()  # in which the library's code runs

    thread = threading.Thread(target=work)
    thread.start()
    waiting.wait()
    assert thread.ident is not None
    while sys._current_frames()[thread.ident].f_code.co_name == "work":
        pass
    yield thread.ident
    ended.set()
    thread.join()


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, blocked: int) -> Any:
    """Return a function that looks at a blocked loop, and whether there was a warning."""

    def looked(*, looks: int, each_s: float, waited_s: float) -> bool:
        now = [0.0]
        monkeypatch.setattr(loop_watch.time, "monotonic", lambda: now[0])
        monkeypatch.setattr(loop_watch, "_waited_for_cpu_s", lambda _: now[0] * waited_s)
        monkeypatch.setattr(loop_watch, "BLOCKED_S", 1.0)
        watch, awaits = loop_watch.LoopWatch(), Watched(blocked)
        watch.add(awaits)  # type: ignore[arg-type]
        for _ in range(looks):
            for one, beat in list(watch._beats.items()):
                watch._look(one, beat)
            now[0] += each_s
        return "synchronous code" in caplog.text

    return looked


def test_a_loop_that_is_blocked_is_reported(looked: Any) -> None:
    assert looked(looks=6, each_s=0.25, waited_s=0.0)


def test_code_that_waits_for_a_cpu_is_not_blamed(looked: Any) -> None:
    assert not looked(looks=40, each_s=0.25, waited_s=0.9)


def test_looks_that_are_late_are_not_the_code_s_fault(looked: Any) -> None:
    assert not looked(looks=4, each_s=100.0, waited_s=0.0)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs Linux's schedstat")
def test_how_long_a_thread_waited_for_a_cpu() -> None:
    assert loop_watch._waited_for_cpu_s(threading.get_ident()) > 0
    assert loop_watch._waited_for_cpu_s(-1) == 0


def test_the_stack_ends_with_the_user_s_own_line(blocked: int) -> None:
    stack = users_stack(sys._current_frames()[blocked])
    assert stack.splitlines()[-1].strip() == "ended.wait()  # in which the library's code runs"
