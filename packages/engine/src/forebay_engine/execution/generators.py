"""Generators of rows: what they yield is emitted, and what they return is an error.

``extend`` drops what a generator returns. So that no record pays for a look at it, the code of a
generator function is read once: one that cannot return anything runs as it is.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Generator
from typing import Any, Final

_RETURNS: Final = ("RETURN_VALUE", "RETURN_CONST")


def only_yields(fn: Any) -> bool:
    """Return whether ``fn`` is a generator function whose code returns nothing but ``None``."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    called: Any = fn if inspect.isroutine(fn) else type(fn).__call__
    return inspect.isgeneratorfunction(called) and _returns_nothing(called.__code__)


@functools.lru_cache(maxsize=256)
def _returns_nothing(code: types.CodeType) -> bool:
    """Return whether a generator's code returns nothing but ``None``.

    Each task unpickles its function, whose code then equals that of the task before.
    """
    before = None
    for instruction in dis.get_instructions(code):
        if instruction.opname in _RETURNS and not _returns_none(instruction, before):
            return False
        before = instruction
    return True


def _returns_none(returns: dis.Instruction, before: dis.Instruction | None) -> bool:
    loads = returns if returns.opname == "RETURN_CONST" else before
    # Code that jumps there, as in ``return rows or None``, has another value.
    jumps = loads is before and returns.is_jump_target
    return (
        loads is not None
        and not jumps
        and loads.opname in ("LOAD_CONST", "RETURN_CONST")
        and loads.argval is None
    )


def yielded(rows: types.GeneratorType[Any, Any, Any]) -> Generator[Any, None, None]:
    """Yield what ``rows`` yields; raise `TypeError` if it then returns anything."""
    returned = yield from rows
    if returned is not None:
        raise TypeError(
            f"the generator {rows.__qualname__} returned {returned!r:.200}, which would emit "
            "nothing: a function with `yield` in it emits each row by `yield row`, and a list of "
            "rows by `yield from rows`; `return` alone ends it"
        )
