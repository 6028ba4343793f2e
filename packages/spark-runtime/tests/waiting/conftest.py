"""An event loop with virtual time, an engine on it, and a fake server."""

from __future__ import annotations

import asyncio
import selectors

import pytest

from forebay_engine.calls.current_call import current_call
from forebay_engine.calls.operator_clients import OperatorClient
from forebay_spark_runtime.waiting.answer_window import RowSegment
from forebay_spark_runtime.waiting.engine import CallEngine
from forebay_state_api.calls.policies import CallPolicy


class HangError(Exception):
    """Every task waits, and no timer is set."""


class _Selector(selectors.DefaultSelector):
    """Advances the time to the next timer instead of waiting."""

    loop = None

    def select(self, timeout=None):
        events = super().select(0)
        if not events:
            if timeout is None:
                raise HangError
            self.loop.now += timeout
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        selector = _Selector()
        super().__init__(selector)
        selector.loop = self
        self.now = 1000.0

    def time(self):
        return self.now

    def run_in_executor(self, executor, func, *args):
        """Call ``func`` at once: a thread would take real time."""
        del executor
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - raised by the await
            done.set_exception(error)
        return done


class Driven:
    """The result of a run of the engine."""

    def __init__(self):
        self.out = []
        """Answers in the order in which they were emitted."""
        self.error = None
        self.took_s = None
        self.counts = None
        self.engine = None
        self.left = 0
        """Tasks that still existed when the engine had ended."""


def cut(rows, size, keys=None):
    rows = list(rows)
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        yield RowSegment(start, part, keys=None if keys is None else [keys(row) for row in part])


class Drive:
    """Return a function that runs an engine over rows until it ends or fails."""

    def __call__(self, fn, rows, *, segment=7, gap=0.0, keys=None, engine=None, **policy):
        driven = Driven()
        policy = CallPolicy(**{"capacity": 10, "keyed": keys is not None, **policy})
        segments = list(cut(rows, segment, keys))
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(self._run(driven, fn, policy, segments, gap, engine or {}))
        return driven

    async def _run(self, driven, fn, policy, segments, gap, options):
        loop = asyncio.get_running_loop()

        def emit(segment, positions):
            positions = range(len(segment.rows)) if positions is None else positions
            driven.out += [segment.answers[position] for position in positions]

        if isinstance(kept := options.get("client"), OperatorClient):
            await kept.open()
        driven.engine = engine = CallEngine(fn, policy, emit=emit, clock=loop.time, **options)
        began = loop.time()
        others = asyncio.all_tasks()
        running = loop.create_task(engine.run())
        try:
            for one in segments:
                if gap:
                    await asyncio.wait([running], timeout=gap)
                engine.input_queue.push(one)
            engine.input_queue.end()
            await running
        except HangError:
            raise
        except Exception as error:  # noqa: BLE001 - tests check it
            driven.error = error
        driven.took_s = loop.time() - began
        if isinstance(kept, OperatorClient):
            await kept.close()
        driven.counts = engine.counts
        driven.left = len(asyncio.all_tasks() - others)


class Server:
    """Answers after a second, but first does the actions that are set for a row's tries."""

    def __init__(self, **told):
        self.told = {int(row[1:]): list(actions) for row, actions in told.items()}
        self.tries = []
        self.live = 0
        self.cancelled = []

    async def __call__(self, row, client):
        now = asyncio.get_running_loop().time() - 1000
        self.tries.append((row, round(now, 3), current_call().attempt))
        action = self.told[row].pop(0) if self.told.get(row) else 1
        self.live += 1
        try:
            if isinstance(action, Exception):
                raise action
            await asyncio.sleep(action)
        except asyncio.CancelledError:
            self.cancelled.append(row)
            raise
        finally:
            self.live -= 1
        return row

    def times(self, row):
        return [at for one, at, _ in self.tries if one == row]


def _failed(row, error, tries):
    return row, type(error).__name__, tries


@pytest.fixture
def drive():
    return Drive()


@pytest.fixture
def hang_error():
    return HangError


@pytest.fixture
def virtual_loop():
    return VirtualLoop


@pytest.fixture
def server_of():
    return Server


@pytest.fixture
def failed():
    """An ``on_error`` whose answers contain the row."""
    return _failed
