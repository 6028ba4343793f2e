"""Random programs of waits end: whatever fails, is cancelled or answers late, nothing spins.

Records run programs of state accesses, sleeps, tasks, groups, time limits and failures, on a
`VirtualClock`. A watchdog counts the turns of the loop and of the engine, and notices where it
would wait for ever.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from forebay_backend_heap import HeapBackend
from forebay_backend_lsm import LsmBackend
from forebay_engine.execution.awaitables import Awaits
from forebay_engine.execution.progress import Progress
from forebay_engine.execution.scheduler import Scheduler
from forebay_engine.isolation.checked_rows import CheckedRows
from forebay_engine.isolation.failed_record import ErrorRows, FailedRecord
from forebay_state_api import (
    FunctionError,
    KeyedProcessFunction,
    MapStateDescriptor,
    ValueStateDescriptor,
    combine_all,
)
from forebay_state_api.settings import EngineSettings
from forebay_testing import KeyedJob, VirtualClock
from forebay_testing.backends.subject import memory_storage
from forebay_testing.late_reads import late_backend
from forebay_testing.reference import ReferenceBackend
from forebay_testing.slow_backend import slow, slow_job
from forebay_testing.virtual_clock import VirtualTime, _Selector, _VirtualLoop

V = ValueStateDescriptor("v", int, default=0)
W = ValueStateDescriptor("w", int, default=0)
M = MapStateDescriptor("m", str, int)

MOST_TURNS = 20_000
"""Of the loop and of the engine, for a micro-batch: the programs need some hundred."""

Program = list[tuple[Any, ...]]


class NeverEndsError(BaseException):
    """Raised by the watchdog; no code catches it."""


class BadProgramError(Exception):
    """The failure of a program."""


# -- programs -----------------------------------------------------------------------------------

LEAVES = ["sleep", "turn", "read", "other", "entry", "write", "put", "unawaited", "together"]
NESTING = [
    *("gather", "returned", "group", "timeout", "wait_for", "shield", "task", "cancelled"),
    *("finally", "suppressed", "callback", "first", "completed", "room"),
]


def drawn(random: Random, depth: int, failures: float, kinds: list[str] = NESTING) -> Program:
    """Draw a program; ``failures`` is the share of steps that fail."""
    return [_step(random, depth, failures, kinds) for _ in range(random.randint(1, 3))]


def _step(random: Random, depth: int, failures: float, kinds: list[str]) -> tuple[Any, ...]:
    if random.random() < failures:
        return ("fail",)
    if depth == 0 or random.random() < 0.4:
        return random.choice(LEAVES), random.choice([0.0, 0.5, 1.0, 1.5, 3.0])
    kind = random.choice(kinds)
    if kind == "room":
        kinds = NESTING[:-1]  # who holds it does not wait for it: that might never end
    seconds = random.choice([0.0, 0.5, 1.0, 2.0, 2.5])
    return kind, seconds, [drawn(random, depth - 1, failures, kinds) for _ in range(2)]


async def perform(f: Any, program: Program) -> int:
    """Run a program, and return the number of its steps."""
    for kind, *arguments in program:
        await STEPS[kind](f, *arguments)
    return len(program)


async def _fail(_: Any) -> None:
    raise BadProgramError


async def _sleep(_: Any, seconds: float) -> None:
    await asyncio.sleep(seconds)


async def _turn(_: Any, __: float) -> None:
    await asyncio.sleep(0)


async def _read(f: Any, _: float) -> None:
    await f.v.async_value()


async def _other(f: Any, _: float) -> None:
    await f.w.async_value()


async def _entry(f: Any, seconds: float) -> None:
    await f.m.async_get(str(seconds))


async def _write(f: Any, _: float) -> None:
    await f.v.async_update(await f.v.async_value() + 1)


async def _put(f: Any, seconds: float) -> None:
    await f.m.async_put(str(seconds), 1)


async def _unawaited(f: Any, _: float) -> None:
    f.v.async_value().then_apply(abs)


async def _together(f: Any, _: float) -> None:
    await combine_all([f.v.async_value(), f.w.async_value()])


async def _gather(f: Any, _: float, bodies: Any) -> None:
    await asyncio.gather(f.w.async_value(), *(perform(f, body) for body in bodies))


async def _returned(f: Any, _: float, bodies: Any) -> None:
    waits = [f.v.async_value(), *(perform(f, body) for body in bodies)]
    await asyncio.gather(*waits, return_exceptions=True)


async def _group(f: Any, _: float, bodies: Any) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(perform(f, bodies[0]))
        await perform(f, bodies[1])


async def _timeout(f: Any, seconds: float, bodies: Any) -> None:
    async with asyncio.timeout(seconds):
        await perform(f, bodies[0])
    await perform(f, bodies[1])


async def _wait_for(f: Any, seconds: float, bodies: Any) -> None:
    await asyncio.wait_for(perform(f, bodies[0]), seconds)
    await asyncio.wait_for(f.v.async_value(), seconds)


async def _shield(f: Any, seconds: float, bodies: Any) -> None:
    await asyncio.wait_for(asyncio.shield(perform(f, bodies[0])), seconds)


async def _task(f: Any, _: float, bodies: Any) -> None:
    f.tasks.append(asyncio.ensure_future(perform(f, bodies[0])))


async def _cancelled(f: Any, seconds: float, bodies: Any) -> None:
    task = asyncio.ensure_future(perform(f, bodies[0]))
    asyncio.get_running_loop().call_later(seconds, task.cancel)
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


async def _finally(f: Any, _: float, bodies: Any) -> None:
    try:
        await perform(f, bodies[0])
    finally:
        await perform(f, bodies[1])


async def _suppressed(f: Any, _: float, bodies: Any) -> None:
    try:
        await perform(f, bodies[0])
    except Exception:  # noqa: BLE001 - it suppresses all
        await perform(f, bodies[1])


async def _callback(f: Any, _: float, bodies: Any) -> None:
    await f.v.async_value().then_apply(lambda _: perform(f, bodies[0]))


async def _first(f: Any, _: float, bodies: Any) -> None:
    tasks = [f.w.async_value(), *(asyncio.ensure_future(perform(f, body)) for body in bodies)]
    _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for one in pending:
        one.cancel()


async def _completed(f: Any, seconds: float, bodies: Any) -> None:
    waits = [f.v.async_value(), perform(f, bodies[0])]
    for one in asyncio.as_completed(waits, timeout=1 + seconds):
        await one


async def _room(f: Any, _: float, bodies: Any) -> None:
    async with f.room:
        await perform(f, bodies[0])


STEPS: dict[str, Callable[..., Any]] = {
    name: globals()[f"_{name}"] for name in ("fail", *LEAVES, *NESTING)
}


class Performs(KeyedProcessFunction[Any, Any, Any]):
    """Runs the program of each row."""

    def open(self, context: Any) -> None:
        self.v = context.get_state(V)
        self.w = context.get_state(W)
        self.m = context.get_map_state(M)
        self.tasks: list[Any] = []
        self.room = asyncio.Semaphore(2)

    async def process_element(self, row: Any, ctx: Any) -> Any:
        yield row[0], await perform(self, row[1])


# -- the watchdog -------------------------------------------------------------------------------


class Watchdog:
    """Counts turns, and raises where there are too many or nothing could end a wait."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns = 0
        for cls, name in (
            *((_VirtualLoop, "_run_once"), (Awaits, "wait"), (Awaits, "turn")),
            *((Progress, "_run_arrived"), (Scheduler, "run_quietly")),
        ):
            monkeypatch.setattr(cls, name, self._counting(getattr(cls, name)))
        self._select = _Selector.select
        monkeypatch.setattr(_Selector, "select", self._selecting())

    def _counting(self, method: Any) -> Any:
        def counted(*arguments: Any) -> Any:
            self.turns += 1
            if self.turns > MOST_TURNS:
                raise NeverEndsError("it spins")
            return method(*arguments)

        return counted

    def _selecting(self) -> Any:
        def select(selector: Any, timeout: float | None = None) -> Any:
            if timeout is None:
                raise NeverEndsError("it waits for nobody")
            return self._select(selector, timeout)

        return select


BACKENDS: dict[str, Callable[[int], Any]] = {
    "heap": lambda _: HeapBackend,
    "slow heap": lambda _: slow(HeapBackend),
    "slow lsm": lambda _: slow(LsmBackend),
    "slow reference": lambda _: slow(ReferenceBackend),
    "late reference": lambda seed: late_backend(ReferenceBackend, seed),
}


def run_program(backend: str, seed: int, failures: float, *, alone: bool) -> list[Any]:
    """Run a micro-batch of programs, and then one that does not fail, on the same state."""
    random = Random(seed)
    rows = [(key, drawn(random, 3, failures)) for key in "aabbcde"]
    settings = EngineSettings(
        read_ahead=False, drain_timeout_s=100_000, batch_size=random.choice([1, 100])
    )
    job = KeyedJob(
        BACKENDS[backend](seed),
        memory_storage(),
        settings=settings,
        clock=VirtualClock(),
        error_rows=ErrorRows(1_000, lambda: CheckedRows(lambda _: None)) if alone else None,
    )
    try:
        try:
            return job.run(Performs(), rows)
        except FunctionError as error:
            return [error]
        finally:
            assert len(job.run(Performs(), [("a", [("write", 0)]), ("a", [("read", 0)])])) == 2
    finally:
        job.close()


EXPECTED = ("BadProgramError", "TimeoutError", "ExceptionGroup", "RecordCancelledError")


def _is_expected(result: Any) -> bool:
    if isinstance(result, FailedRecord):
        return result.type in EXPECTED
    if isinstance(result, FunctionError):
        return type(result.__cause__).__name__ in EXPECTED
    return True


def _is_expected_log(message: str) -> bool:
    """Return whether asyncio logs it too, or a ``finally`` block takes longer than it may."""
    late = "did not end within 10 s" in message and "in _finally" in message
    return late or "exception was never retrieved" in message


@pytest.mark.parametrize(
    "seeds",
    [range(5), pytest.param(range(5, 100), marks=pytest.mark.slow)],
    ids=["few", "many"],
)
@pytest.mark.parametrize("alone", [False, True], ids=["with the batch", "alone"])
@pytest.mark.parametrize("failures", [0.0, 0.05, 0.2])
@pytest.mark.parametrize("backend", BACKENDS)
def test_programs_end(
    backend: str,
    failures: float,
    alone: bool,
    seeds: range,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    watchdog = Watchdog(monkeypatch)
    with caplog.at_level(logging.WARNING):
        for seed in seeds:
            watchdog.turns = 0
            results = run_program(backend, seed, failures, alone=alone)
            assert [one for one in results if not _is_expected(one)] == [], f"seed {seed}"
            said = [one for one in caplog.messages if not _is_expected_log(one)]
            assert said == [], f"seed {seed}"


# -- the oracle ---------------------------------------------------------------------------------

COMPARED_READ_S = 2.03
"""No sum of the programs' seconds: which of two events at one time comes first says nothing."""

NOT_OF_ASYNCIO = {"callback", "entry", "write", "put", "unawaited", "together"}


class Reads:
    """The states of a program that reads only; each read has its own two seconds."""

    def __init__(self, read: Callable[[], Any]) -> None:
        self.async_value = read
        self.v = self.w = self
        self.tasks: list[Any] = []
        self.room = asyncio.Semaphore(2)


class Observed(KeyedProcessFunction[Any, Any, Any]):
    """Emits the result or the error of a program, and its seconds."""

    def open(self, context: Any) -> None:
        self.m = context.get_map_state(M)

    async def process_element(self, row: Any, ctx: Any) -> Any:
        numbers = itertools.count()
        reads = Reads(lambda: self.m.async_get(str(next(numbers))))
        yield await _observed(reads, row[1])


async def _observed(reads: Reads, program: Program) -> tuple[str, float]:
    clock = asyncio.get_running_loop().time
    began = clock()
    try:
        result = str(await perform(reads, program))
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - it is compared
        result = type(error).__name__
    return result, round(clock() - began, 3)


def _plain() -> asyncio.Future[int]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[int] = loop.create_future()
    loop.call_later(COMPARED_READ_S, lambda: future.done() or future.set_result(0))
    return future


def _by_asyncio(program: Program) -> tuple[str, float]:
    time = VirtualTime(VirtualClock())
    try:
        return time.run(lambda: time._runner.run(_observed(Reads(_plain), program)))
    finally:
        time.close()


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds",
    [range(60), pytest.param(range(60, 1_000), marks=pytest.mark.slow)],
    ids=["few", "many"],
)
@pytest.mark.parametrize("failures", [0.0, 0.08])
def test_programs_give_what_they_give_with_futures_of_asyncio(
    failures: float, seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LEAVES", "NESTING"):
        kept = [kind for kind in globals()[name] if kind not in NOT_OF_ASYNCIO]
        monkeypatch.setitem(globals(), name, kept)
    compared = 0
    for seed in seeds:
        program = drawn(Random(seed), 3, failures, NESTING)
        job = slow_job(read_s=COMPARED_READ_S, batch_size=1)
        results: list[Any]
        try:
            results = job.run(Observed(), [("a", program)])
        except FunctionError as error:
            results = [error]
        job.close()
        if isinstance(results[0], FunctionError):  # of a task that nobody awaited
            assert _is_expected(results[0]), f"seed {seed}"
        else:
            assert results == [_by_asyncio(program)], f"seed {seed}"
            compared += 1
    assert compared > len(seeds) / 2
