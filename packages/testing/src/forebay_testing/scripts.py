"""State accesses as data, executed in every style in which a function can be written.

An access is a tuple: ``("counts.put", "a", 1)`` calls ``put("a", 1)`` of the state ``counts``;
``("namespace", "w1")`` makes a namespace current; ``("fail",)`` raises `ScriptFailed`; a leading
``!`` expects a `ValueError` at the call. In `Style.OVERLAPPING` a leading ``=`` makes an access
synchronous, and ``~`` leaves it until the end of the record. By contract, a script gives the same
results in all styles, on every backend.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from forebay_state_api.job.context import RuntimeContext
from forebay_state_api.job.descriptors import StateDescriptor
from forebay_state_api.job.functions import KeyedProcessFunction
from forebay_state_api.job.futures import StateFuture, combine_all, completed_future
from forebay_state_api.job.iterators import StateIterator, to_iterable

Access = tuple[Any, ...]
"""``("state.method", *arguments)`` or ``("namespace", value)``."""

AT_ONCE: Final = "="
LEFT: Final = "~"
WAYS: Final = (AT_ONCE, LEFT)
"""The marks with which the names of accesses may begin in `Style.OVERLAPPING`."""

REFUSED = "ValueError"
"""The result of an access with a leading ``!``."""


_MARKS: Final = "".join(("!", *WAYS))


class ScriptFailed(Exception):  # noqa: N818 - what a script does, not a mistake
    """A script has come to its ``("fail",)``."""


class Style(enum.Enum):
    """The way in which a function waits for its accesses."""

    SYNCHRONOUS = "synchronous"
    COROUTINE = "coroutine"
    CALLBACK = "callback"
    UNCHAINED = "unchained"
    """All at once: each access is issued before the previous one has been answered."""
    OVERLAPPING = "overlapping"
    """Each access in the way that its name begins with; without one it is awaited."""


class Script(NamedTuple):
    """A row for a `ScriptFunction`."""

    key: Any
    number: int
    accesses: Sequence[Access]


class ScriptFunction(KeyedProcessFunction[Any, Script, tuple[int, list[Any]]]):
    """Executes scripts; emits ``(number, results)`` for each.

    Iterators become lists, sorted for maps, so that results can be compared.
    """

    def __init__(self, descriptors: Sequence[StateDescriptor]) -> None:
        self.descriptors = descriptors
        self.states: Mapping[str, Any] = {}

    def open(self, context: RuntimeContext) -> None:
        self.states = {one.name: declared(context, one) for one in self.descriptors}

    def call(self, ctx: RuntimeContext, access: Access, prefix: str) -> Any:
        """Issue one access; ``prefix`` ``async_`` applies if the state has such a method."""
        name, *arguments = access
        if name == "namespace":
            return ctx.set_current_namespace(*arguments)
        if name == "fail":
            raise ScriptFailed
        state_name, method = name.lstrip(_MARKS).split(".")
        state = self.states[state_name]
        called = getattr(state, prefix + method, None) or getattr(state, method)
        if not name.startswith("!"):
            return called(*arguments)
        try:
            called(*arguments)
        except ValueError:
            return REFUSED
        return "not refused"

    def answer(self, access: Access, result: Any) -> Any:
        """Return the result in a comparable form."""
        if not isinstance(result, list) or access[0].rpartition(".")[2] in {"get", "add", "range"}:
            return result
        return sorted(result, key=repr)

    def issue(self, ctx: RuntimeContext, access: Access) -> StateFuture[Any]:
        """Issue an access asynchronously; return a future of its comparable result."""
        issued = self.call(ctx, access, "async_")
        if not isinstance(issued, StateFuture):
            return completed_future(self.answer(access, issued))
        return issued.then_compose(_loaded).then_apply(lambda result: self.answer(access, result))


class SynchronousScripts(ScriptFunction):
    """Executes scripts in `Style.SYNCHRONOUS`."""

    def process_element(self, row: Script, ctx: RuntimeContext) -> Any:
        results = [self.answer(one, self.call(ctx, one, "")) for one in row.accesses]
        return [(row.number, results)]


class CoroutineScripts(ScriptFunction):
    """Executes scripts in `Style.COROUTINE`."""

    async def process_element(self, row: Script, ctx: RuntimeContext) -> Any:
        results = []
        for access in row.accesses:
            result = await _read(self.call(ctx, access, "async_"))
            results.append(self.answer(access, result))
        return [(row.number, results)]


class CallbackScripts(ScriptFunction):
    """Executes scripts in `Style.CALLBACK`: each access in a callback of the previous one."""

    def process_element(self, row: Script, ctx: RuntimeContext) -> Any:
        results: list[Any] = []

        def go_on(position: int) -> StateFuture[Any]:
            if position == len(row.accesses):
                ctx.collect((row.number, results))
                return completed_future(None)
            issued = self.issue(ctx, row.accesses[position])
            return issued.then_accept(results.append).then_compose(lambda _: go_on(position + 1))

        go_on(0)


class UnchainedScripts(ScriptFunction):
    """Executes scripts in `Style.UNCHAINED`."""

    def process_element(self, row: Script, ctx: RuntimeContext) -> Any:
        futures = [self.issue(ctx, access) for access in row.accesses]
        combine_all(futures).then_accept(lambda results: ctx.collect((row.number, results)))


class OverlappingScripts(ScriptFunction):
    """`Style.OVERLAPPING`: what is left until the end is read then, the last access first."""

    async def process_element(self, row: Script, ctx: RuntimeContext) -> Any:
        results: list[Any] = []
        left = []
        for number, access in enumerate(row.accesses):
            way = access[0][0]
            made = self.call(ctx, access, "" if way == AT_ONCE else "async_")
            if way == LEFT:
                left.append(number)
            else:
                made = await _read(made)
            results.append(made)
        for number in reversed(left):
            results[number] = await _read(results[number])
        return [(row.number, list(map(self.answer, row.accesses, results)))]


def script_function(style: Style, descriptors: Sequence[StateDescriptor]) -> ScriptFunction:
    """Return a function that executes scripts in a style."""
    classes: dict[Style, type[Any]] = {
        Style.SYNCHRONOUS: SynchronousScripts,
        Style.COROUTINE: CoroutineScripts,
        Style.CALLBACK: CallbackScripts,
        Style.UNCHAINED: UnchainedScripts,
        Style.OVERLAPPING: OverlappingScripts,
    }
    function: ScriptFunction = classes[style](descriptors)
    return function


def declared(context: RuntimeContext, descriptor: Any) -> Any:
    """Declare and return the state of a descriptor of any kind."""
    return context._declare(descriptor)  # noqa: SLF001 - what all getters call


def _loaded(result: Any) -> StateFuture[Any]:
    if isinstance(result, StateIterator):
        return to_iterable(completed_future(result))
    return completed_future(result)


async def _read(made: Any) -> Any:
    """Return the result of an access that may be a future, and its elements if it has some."""
    result = await made if isinstance(made, StateFuture) else made
    if isinstance(result, StateIterator):
        return [element async for element in result]
    return result
