"""``ctx.idempotency_key``: the same for a record in every attempt, and of no other record."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from forebay_state_api import (
    FunctionError,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    StateAccessError,
    ValueStateDescriptor,
)
from forebay_testing import FunctionHarness

ROWS = [{"k": str(number % 7), "n": number // 7} for number in range(40)]
N = ValueStateDescriptor("n", int, default=0)

SEEN: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    SEEN.clear()


class Asks(KeyedProcessFunction[Any, Any, Any]):
    """Emits each row with its key, asked for before and after waits; ``fails`` once if set."""

    def open(self, context: Any) -> None:
        self.n = context.get_state(N)

    async def process_element(self, row: Any, ctx: Any) -> Any:
        await self.n.async_update(await self.n.async_value() + 1)
        before = ctx.idempotency_key if row["n"] % 2 else None
        await asyncio.sleep(0)
        (child,) = await asyncio.gather(self.in_child(ctx))
        if SEEN.pop("fails", None):
            raise RuntimeError("once")
        assert before in {None, ctx.idempotency_key}
        assert child == ctx.idempotency_key
        yield row["k"], row["n"], ctx.idempotency_key

    async def in_child(self, ctx: Any) -> str:
        await asyncio.sleep(0)
        return str(ctx.idempotency_key)


def keys_of(rows: list[dict[str, Any]], **options: Any) -> dict[tuple[str, int], str]:
    with FunctionHarness(Asks(), "k", **options) as harness:
        return {(k, n): key for k, n, key in harness.process(rows)}


@pytest.mark.parametrize("backend", ["heap", "lsm"])
def test_a_key_names_one_record_and_no_other(backend: str) -> None:
    keys = keys_of(ROWS, backend=backend, uid="fraud", query="q")
    assert len(set(keys.values())) == len(ROWS)
    assert all(key.startswith("q/0/fraud/") for key in keys.values())


def test_another_order_and_parallelism_give_the_same_keys() -> None:
    assert keys_of(ROWS) == keys_of(ROWS[::-1], parallelism=3)


def test_every_attempt_of_a_batch_gives_the_same_keys() -> None:
    with FunctionHarness(Asks(), "k") as harness:
        harness.process(ROWS)
        SEEN["fails"] = True
        with pytest.raises(FunctionError, match="once"):
            harness.process(ROWS)
        second = harness.process(ROWS)
        harness.restart(version=1, parallelism=2)
        assert sorted(harness.process(ROWS)) == sorted(second)
        third = harness.process(ROWS)
        assert not {key for *_, key in second} & {key for *_, key in third}


def test_equal_rows_of_a_key_have_keys_of_their_own() -> None:
    with FunctionHarness(Asks(), "k") as harness:
        keys = [key for *_, key in harness.process([ROWS[0]] * 3)]
    assert keys[1:] == [f"{keys[0]}/2", f"{keys[0]}/3"]


class Both(KeyedCoProcessFunction[Any, Any, Any, Any]):
    def process_element1(self, row: Any, ctx: Any) -> Any:
        later = ctx.timers.processing_time + timedelta(seconds=1)
        ctx.timers.register_processing_time(later)
        ctx.set_current_namespace("x")
        ctx.timers.register_processing_time(later)
        yield "first", ctx.idempotency_key

    def process_element2(self, row: Any, ctx: Any) -> Any:
        return [("second", ctx.idempotency_key)]

    def on_timer(self, at: Any, ctx: Any) -> Any:
        yield f"timer {ctx.current_namespace}", ctx.idempotency_key


def test_inputs_and_timers_have_keys_of_their_own() -> None:
    with FunctionHarness(Both(), "k") as harness:
        row = {"k": "a"}
        out = harness.process([row], [row])
        harness.clock.advance(timedelta(seconds=2))
        out += harness.process([])
        again = harness.restart(version=1).process([])
    assert sorted(name for name, _ in out) == ["first", "second", "timer None", "timer x"]
    assert len({key for _, key in out}) == 4
    assert sorted(out)[2:] == sorted(again)


def _in_a_thread(row: Any, ctx: Any) -> Any:
    return asyncio.to_thread(lambda: ctx.idempotency_key)


@pytest.mark.parametrize(
    ("work", "message"),
    [
        (_in_a_thread, "ctx was used on thread"),
        (lambda row, ctx: [row.update(odd=object()), ctx.idempotency_key], "no stable bytes"),
    ],
)
def test_where_there_is_no_key(work: Any, message: str) -> None:
    async def asks(row: Any, ctx: Any) -> Any:
        await work(row, ctx)

    with (
        FunctionHarness(asks, "k") as harness,
        pytest.raises((FunctionError, StateAccessError), match=message),
    ):
        harness.process([{"k": "a"}])


class InOpen(Asks):
    def open(self, context: Any) -> None:
        _ = context.idempotency_key


def test_there_is_no_key_in_open() -> None:
    with (
        FunctionHarness(InOpen(), "k") as harness,
        pytest.raises(StateAccessError, match="calls and their keys are made per record"),
    ):
        harness.process(ROWS)
