"""A loop that synchronous code blocks is reported, once, with the stack."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from forebay_state_api.engine import loop_watch
from forebay_state_api.testing import FunctionHarness

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
