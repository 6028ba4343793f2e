"""The base classes of jobs' functions over keyed rows.

A fresh copy of a function lives for one micro-batch of one subtask: ``open`` → records → ``close``.
Fields do not survive a batch; state does. The record methods may be a plain method, a generator, an
``async def`` or an asynchronous generator; they emit rows by ``yield``, by returning a list (or
another iterable) of rows, or by ``ctx.collect(row)``. A generator that returns anything raises
`TypeError`: rows among it would be lost. The methods of ``ReduceFunction`` and
``AggregateFunction`` are plain inside states; a ``ReduceFunction`` that reduces rows may also use
an ``async def``.
"""

from __future__ import annotations

import abc
import inspect
from datetime import datetime
from typing import Any, Generic, TypeVar

from forebay_state_api.job.context import RuntimeContext

T = TypeVar("T")
IN = TypeVar("IN")
ACC = TypeVar("ACC")
OUT = TypeVar("OUT")
K = TypeVar("K")
LEFT = TypeVar("LEFT")
RIGHT = TypeVar("RIGHT")
BROADCAST = TypeVar("BROADCAST")


class Function:
    """Base of all functions: `open` runs once before the first record, `close` at the end."""

    def open(self, context: RuntimeContext) -> None:
        """Declare states here, with ``context.get_state(…)`` and the like. No key is current."""

    def close(self) -> None:
        """Release the resources that `open` acquired; also called after a failure."""


class TimedFunction(Function):
    """A function of keyed rows that may have timers."""

    def on_timer(self, at: datetime, ctx: RuntimeContext) -> Any:
        """Handle a timer of ``ctx.current_key`` that was registered for ``at``, here in UTC.

        Define it to use ``ctx.timers``; `forebay_state_api.job.timers` documents when it is called.
        Like the record methods it may be a plain method, a generator, an ``async def`` or an
        asynchronous generator, and may emit rows.
        """


class KeyedProcessFunction(TimedFunction, Generic[K, IN, OUT]):
    """The general function over the rows of one keyed input."""

    @abc.abstractmethod
    def process_element(self, row: IN, ctx: RuntimeContext) -> Any:
        """Handle one row; its key is ``ctx.current_key`` and the key of every state access."""


class KeyedCoProcessFunction(TimedFunction, Generic[K, LEFT, RIGHT, OUT]):
    """The general function over two keyed inputs that share their state by key."""

    @abc.abstractmethod
    def process_element1(self, row: LEFT, ctx: RuntimeContext) -> Any:
        """Handle one row of the first input."""

    @abc.abstractmethod
    def process_element2(self, row: RIGHT, ctx: RuntimeContext) -> Any:
        """Handle one row of the second input."""


class KeyedBroadcastProcessFunction(TimedFunction, Generic[K, IN, BROADCAST, OUT]):
    """The general function over a keyed input and a broadcast input.

    Every row of the broadcast input reaches every subtask. It writes broadcast state, which the
    rows of the keyed input read; `RuntimeContext.get_broadcast_state` declares it in ``open``.
    """

    @abc.abstractmethod
    def process_element(self, row: IN, ctx: RuntimeContext) -> Any:
        """Handle one row of the keyed input; broadcast state is read-only."""

    @abc.abstractmethod
    def process_broadcast_element(self, row: BROADCAST, ctx: RuntimeContext) -> Any:
        """Handle one row of the broadcast input, in every subtask; no key is current.

        Nothing else runs: every earlier record is done, and later ones begin when it is done.
        The copies of broadcast state stay equal only if what is written depends on nothing but the
        row and broadcast state. ``ctx.apply_to_keyed_state`` reads and writes keyed state. A row
        that is emitted here is emitted once by each subtask.
        """


class MapFunction(Function, Generic[IN, OUT]):
    """Returns one row for each input row."""

    @abc.abstractmethod
    def map(self, row: IN) -> Any:
        """Return the one row that replaces ``row``."""


class FlatMapFunction(Function, Generic[IN, OUT]):
    """Returns any number of rows for each input row."""

    @abc.abstractmethod
    def flat_map(self, row: IN) -> Any:
        """Yield the rows that replace ``row``, or return them as a list."""


class KeyedBatchFunction(Function):
    """The general function over columns: many rows of one keyed input, or of two, at once.

    `forebay_engine.columns` has the classes of its arguments. Its states are those of a function of
    one row, with methods for many keys: a class may be both, and a job changes by a restart.
    """

    slices: str = "bounded"
    """How a micro-batch is cut: ``"bounded"`` in parts of bounded memory, in which a key may come
    again, or ``"micro-batch"`` for all rows at once."""

    @abc.abstractmethod
    def process_batch(self, rows: Any, ctx: Any) -> Any:
        """Return the output for some rows: a dict of arrays, rows, or a frame; or ``None``."""

    def end_batch(self, ctx: Any) -> Any:
        """Return output after the last rows of a micro-batch; ``ctx.groups`` has all their keys."""

    def on_timers(self, at: Any, ctx: Any) -> Any:
        """Return output for a due timer of each key: ``at`` has their times."""


def called(method: Any, *arguments: Any) -> Any:
    """Call a method that is not a record method; it may neither be async nor yield."""
    result = method(*arguments)
    if inspect.iscoroutine(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if not inspect.isasyncgen(result):
            result.close()
        raise TypeError(f"{method.__name__} is a plain method: it neither awaits nor yields")
    return result
