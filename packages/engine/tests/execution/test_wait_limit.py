"""One timer bounds all waits of an engine in its loop."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from forebay_engine.execution.wait_limit import WaitLimit


class Timers:
    """A loop's timers, whose time a test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.handles: list[Any] = []
        self.stopped = 0

    def call_later(self, delay: float, callback: Any) -> Any:
        handle = asyncio.TimerHandle(self.now + delay, callback, (), self)  # type: ignore[arg-type]
        self.handles.append(handle)
        return handle

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for handle in list(self.handles):
            if not handle.cancelled() and handle.when() <= self.now:
                self.handles.remove(handle)
                handle._run()

    def stop(self) -> None:
        self.stopped += 1

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: Any) -> None:
        self.handles.remove(handle)


@pytest.fixture
def timers() -> Timers:
    return Timers()


@pytest.fixture
def limit(timers: Timers) -> Iterator[WaitLimit]:
    limit = WaitLimit(timers, lambda: timers.now)  # type: ignore[arg-type] # as much of a loop as it uses
    yield limit
    limit.close()
    assert timers.handles == []


def test_a_wait_that_takes_too_long_stops_the_loop(timers: Timers, limit: WaitLimit) -> None:
    limit.begin(10)
    timers.pass_time(9)
    assert timers.stopped == 0
    timers.pass_time(1)
    assert timers.stopped == 1
    assert limit.end()


def test_many_waits_share_a_timer(timers: Timers, limit: WaitLimit) -> None:
    for _ in range(100):
        limit.begin(10)
        timers.pass_time(0.01)
        assert not limit.end()
    assert len(timers.handles) == 1


def test_each_wait_has_its_whole_time(timers: Timers, limit: WaitLimit) -> None:
    limit.begin(10)
    timers.pass_time(6)
    assert not limit.end()
    limit.begin(10)
    timers.pass_time(6)  # the timer of the first wait
    assert timers.stopped == 0
    timers.pass_time(4)
    assert timers.stopped == 1
    assert limit.end()


def test_a_shorter_wait_ends_sooner(timers: Timers, limit: WaitLimit) -> None:
    limit.begin(600)
    assert not limit.end()
    limit.begin(10)
    timers.pass_time(10)
    assert timers.stopped == 1
    assert limit.end()


def test_nothing_is_stopped_while_nobody_waits(timers: Timers, limit: WaitLimit) -> None:
    limit.begin(10)
    assert not limit.end()
    timers.pass_time(100)
    assert timers.stopped == 0
    limit.begin(10)  # which sets a timer again
    timers.pass_time(10)
    assert timers.stopped == 1
