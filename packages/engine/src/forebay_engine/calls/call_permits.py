"""The permits of a subtask's calls, which bound the number of concurrent tries.

A try that makes calls has its permit until they have answered. If each of those waited for a permit
of its own, the tries that hold all permits would wait for each other. So a try lends its permit to
the calls made within it, one at a time: the innermost of them can always go on.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Generator
from contextvars import ContextVar
from typing import Any, Final

_INSIDE: Final[ContextVar[CallPermit | None]] = ContextVar("forebay_call_permit", default=None)
"""The permit of the try whose code runs; tasks that the code starts inherit it."""


class CallPermit:
    """A permit while one try has it; the try may be done if a call within it still uses it."""

    __slots__ = ("_permits", "argument", "lender", "lent", "line", "steps", "taken")

    def __init__(self, permits: CallPermits, argument: Any, lender: CallPermit | None) -> None:
        self._permits = permits
        self.argument: Final = argument
        """The argument of the call."""
        self.lender: Final = lender
        """The permit of the try that this call was made in, if that has lent it."""
        self.lent = False
        """Whether a call within the try uses it."""
        self.line: _Line = OrderedDict()
        """The calls within the try that wait for it, or for a free permit."""
        self.steps: Any = None
        """The coroutine of the try, once it has begun."""
        self.taken = True
        """Whether the try is under way."""

    def of(self, permits: CallPermits) -> bool:
        """Return whether the try is under way, and one of these permits its own."""
        return self.taken and self._permits is permits

    def give_back(self) -> None:
        """End the try's use of its permit, which goes to the first call that waits for it."""
        self._permits.give_back(self)

    def running(self, awaited: Awaitable[Any]) -> Awaitable[Any]:
        """Return the try, so that calls which its code makes find this permit."""
        self.steps = awaited
        return _Inside(awaited, self)


_Line = OrderedDict[asyncio.Future[CallPermit], tuple[Any, CallPermit | None]]
"""Calls that wait for a permit, in order → (argument, the permit of the try they are made in)."""


class CallPermits:
    """All permits of one subtask; first come, first served."""

    def __init__(self, number: int) -> None:
        self.number: Final = number
        self.waiting: _Line = OrderedDict()
        self._free = number
        self._taken: dict[CallPermit, None] = {}

    @property
    def used(self) -> list[CallPermit]:
        """The permits in use; of one that tries have lent each other, the innermost try's."""
        return [permit for permit in self._taken if not permit.lent]

    async def take(self, argument: Any) -> CallPermit:
        """Wait for a permit; a call within a try takes that try's own, if no other is free."""
        around = _INSIDE.get()
        if around is not None and not around.of(self):
            around = None
        if around is not None and not around.lent:
            around.lent = True
            return self._permit(argument, around)
        return self.take_free(argument) or await self._wait(argument, around)

    @property
    def free(self) -> bool:
        """Whether there is a permit that no call waits for."""
        return bool(self._free)

    def take_free(self, argument: Any) -> CallPermit | None:
        """Take a permit that is free now and that no other call waits for."""
        if not self._free:
            return None
        self._free -= 1
        return self._permit(argument, None)

    def give_back(self, permit: CallPermit) -> None:
        """End a try's use of its permit, which goes to the first call that waits for it."""
        permit.taken = False
        del self._taken[permit]
        if not permit.lent:
            self._pass_on(permit.lender)

    def _permit(self, argument: Any, lender: CallPermit | None) -> CallPermit:
        permit = CallPermit(self, argument, lender)
        self._taken[permit] = None
        return permit

    async def _wait(self, argument: Any, around: CallPermit | None) -> CallPermit:
        future: asyncio.Future[CallPermit] = asyncio.get_running_loop().create_future()
        self.waiting[future] = argument, around
        if around is not None:
            around.line[future] = argument, around
        try:
            return await future
        except BaseException:
            if not future.cancel() and not future.cancelled():
                self.give_back(future.result())
            raise
        finally:
            self._leave_line(future, around)

    def _pass_on(self, lender: CallPermit | None) -> None:
        """Give a permit that is free to the next call: one within ``lender``, or any."""
        while lender is not None and not lender.taken:
            lender = lender.lender  # its try is done while this call used its permit
        line = self.waiting if lender is None else lender.line
        while line:
            future, (argument, around) = line.popitem(last=False)
            self._leave_line(future, around)
            if not future.done():  # else its call was cancelled
                future.set_result(self._permit(argument, lender))
                return
        if lender is None:
            self._free += 1
        else:
            lender.lent = False

    def _leave_line(self, future: asyncio.Future[CallPermit], around: CallPermit | None) -> None:
        self.waiting.pop(future, None)
        if around is not None:
            around.line.pop(future, None)


class _Inside(Generator[Any, Any, Any]):
    """Runs the steps of a try with its permit as the current one.

    Records share the context of their thread, so the permit is set for each step alone.
    """

    def __init__(self, awaited: Awaitable[Any], permit: CallPermit) -> None:
        self.cr_await: Final = awaited
        """Named as a coroutine's, for who follows what waits for what."""
        self._steps: Any = awaited.__await__()
        self._permit = permit

    def __await__(self) -> Generator[Any, Any, Any]:
        return self

    def send(self, value: Any) -> Any:
        return self._step(self._steps.send, value)

    def throw(self, *error: Any) -> Any:
        return self._step(self._steps.throw, *error)

    def _step(self, run: Any, *arguments: Any) -> Any:
        before = _INSIDE.set(self._permit)
        try:
            return run(*arguments)
        finally:
            _INSIDE.reset(before)
