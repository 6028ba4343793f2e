"""Hints on the correct code, for Python's own errors in user code that do not explain it.

Hints are looked up only after an error, so a run without errors pays nothing.
"""

from __future__ import annotations

import inspect
import re
from typing import Any, Final

from forebay_state_api.job import (
    context,
    functions,
    operator_state,
    states,
    timers,
)
from forebay_state_api.job.descriptors import StateDescriptor
from forebay_state_api.job.futures import AWAIT_HELP, StateFuture, asks_for_a_loop
from forebay_state_api.job.iterators import StateIterator
from forebay_state_api.not_awaited import NOT_AWAITED
from forebay_state_api.user_frames import users_frames

_ITERATED: Final = (
    "read it with `async for`, or all at once: `await to_iterable(state.async_get())`"
)
_DESCRIBES: Final = (
    "a descriptor declares a state: `self.count = context.get_state(descriptor)` in open()"
)
_NOTHING_STORED: Final = (
    "None is what state without a value reads as (give its descriptor default=, or test for "
    "None), and what a null in a row is"
)
_BY_TEXT: Final = tuple(
    (re.compile(pattern), hint)
    for pattern, hint in (
        (r"'StateFuture'|(got|not|of type|^type) StateFuture\b|StateFuture found", NOT_AWAITED),
        (r"'StateIterator'|(got|not|of type|^type) StateIterator\b", _ITERATED),
        (r"StateDescriptor'", _DESCRIBES),
        (r"combine_all\(\) takes|^object (list|tuple) can't be|^'(list|tuple)' object can't be aw",
         "combine_all([...]) is one future of several"),
        (r"object .*can't be (used in 'await'|awaited)",
         "a method without async_ has answered already"),
        (r"MapState\.(async_)?get\(\) takes 2 pos",
         "get takes the key alone, and gives None where nothing is stored"),
        (r"get_\w*state\(\) takes 2 pos", _DESCRIBES),
        (r"(list\.append|ctx\.collect)\(\) takes",
         "ctx.collect takes one row: ctx.collect((a, b))"),
        (r"'NoneType'", _NOTHING_STORED),
        (r"^tuple indices must be", "a named tuple's columns are attributes, as in row.user"),
    )
)  # fmt: skip

_PUBLIC: Final = frozenset(module.__name__ for module in (context, operator_state, states, timers))
"""Modules of the interfaces that users see; the classes behind them may be different ones."""


def hint(error: BaseException, running: str) -> str:
    """Return a hint on the correct code, after a dash; empty if there is none to give.

    ``running`` is the running method of the function.
    """
    found = _called_with(running) if _does_not_take(error) else None
    if isinstance(error, AttributeError):
        found = _members(error.obj)
    if found is None and isinstance(error, (AttributeError, TypeError, RuntimeError)):
        text = str(error)
        if asks_for_a_loop(error):
            return f" - {AWAIT_HELP}"
        found = next((advice for pattern, advice in _BY_TEXT if pattern.search(text)), None)
        if found is None and (kind := re.search(r"(?:Keyed|Ttl)(\w+State)\b", text)):
            found = _members_of(getattr(states, kind[1]))
    return "" if found is None else f" - {found}"


def _does_not_take(error: BaseException) -> bool:
    """Return whether the call itself failed: none of the function's own lines has run."""
    is_of_call = isinstance(error, TypeError) and "positional argument" in str(error)
    return is_of_call and not users_frames(error)


def _called_with(method: str) -> str | None:
    if method == "__call__":
        method = "process_element"
    for _, cls in inspect.getmembers(functions, inspect.isclass):
        if method in vars(cls):
            _, *parameters = inspect.signature(vars(cls)[method]).parameters
            return f"it is called with ({', '.join(parameters)})"
    return "it is called with (row, value)" if method.endswith("map_with_state") else None


def _members(used: Any) -> str | None:
    """Return the members of an object on which a missing one was accessed."""
    if isinstance(used, StateFuture | StateIterator | StateDescriptor):
        return None
    for cls in type(used).__mro__:
        if cls.__module__ in _PUBLIC:
            return _members_of(cls)
    if not isinstance(used, tuple) or hasattr(used, "__getattr__"):  # its error explains it
        return None
    fields = getattr(used, "_fields", ())
    return f"its columns are {', '.join(fields)}" if fields else None


def _members_of(cls: type) -> str:
    members = {*dir(cls), *inspect.get_annotations(cls)}
    names = sorted(name for name in members if not name.startswith(("_", "async_")))
    twins = ", and async_ twins" if issubclass(cls, states.State) else ""
    return f"{cls.__name__} has {', '.join(names)}{twins}"
