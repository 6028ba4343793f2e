"""Names of calls: a digest of what is asked, and a number among equal calls.

A position, a line of code or a function's name would name another call after rows have come in
another order, children have been gathered with other latencies, or the job has changed.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

import msgpack

from forebay_state_api.codecs.plain import dump_typed
from forebay_state_api.job.context import RuntimeContext
from forebay_state_api.job.functions import Function

DIGEST_BYTES: Final = 16
_CURE: Final = (
    "Pass what the call asks as arguments, ctx.kept_call(name, fn, question); clients are in "
    "ctx.clients"
)


class CallNames:
    """Names the calls of one task attempt, on one thread; about 150 bytes of memory each."""

    def __init__(self) -> None:
        self._equal: dict[bytes, int] = {}
        # One packer for all: making one takes longer than packing. It knows no extension types.
        self._pack: Callable[[Any], bytes] = msgpack.Packer().pack

    def of(
        self, keep: str, place: tuple[Any, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> bytes:
        """Return the name of the next call that asks this.

        It asks what its ``keep`` name, its ``place`` (key and namespace) and its arguments are. A
        ``ctx`` among the arguments is left out. Equal values of two types, as ``1`` and ``"1"``,
        differ; a tuple and a list of equal elements do not. Raises `TypeError` for a value that has
        no stable bytes.
        """
        digest = hashlib.blake2b(
            self._asked(keep, place, args, kwargs), digest_size=DIGEST_BYTES
        ).digest()
        equal = self._equal
        number = equal[digest] = equal.get(digest, 0) + 1
        if number == 1:
            return digest
        again = digest + number.to_bytes(8, "big")
        return hashlib.blake2b(again, digest_size=DIGEST_BYTES).digest()

    def _asked(
        self, keep: str, place: tuple[Any, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> bytes:
        given = [one for one in args if type(one) is not RuntimeContext]
        named = _named(kwargs) if kwargs else ()
        content = (keep, place, given, named)
        try:
            return self._pack(content)
        except Exception:  # noqa: BLE001 - a value of an extension type, or one that is refused
            return _dumped(content)


def _dumped(content: tuple[Any, ...]) -> bytes:
    try:
        return dump_typed(content)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise _unstable_error(*content) from error


def _named(kwargs: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(k, kwargs[k]) for k in sorted(kwargs) if type(kwargs[k]) is not RuntimeContext]


def _unstable_error(
    keep: str, place: tuple[Any, ...], given: list[Any], named: Sequence[tuple[str, Any]]
) -> TypeError:
    arguments = [*given, *(one for _, one in named)]
    refused = next((one for one in arguments if not _is_stable(one)), place)
    return TypeError(
        f"the answer kept as {keep!r} is found by what its call asks, and {refused!r:.200} of type "
        f"{type(refused).__qualname__} has no stable bytes. Pass plain values: text, numbers, "
        "bytes, dates, and lists, tuples and dicts of them; of an object the fields that the call "
        "needs; no set, and no client"
    )


def _is_stable(value: Any) -> bool:
    try:
        dump_typed(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False
    return True


def check_asks_by_arguments(keep: str, fn: Callable[..., Any]) -> None:
    """Raise `TypeError` for a function that hides values of the record: a closure, a partial.

    Methods, decorated functions, and closures over functions and modules alone are accepted.
    """
    if type(fn) is MethodType:
        return
    if isinstance(fn, functools.partial):
        raise _hiding_error(keep, fn, "has arguments of its own")
    if type(fn) is not FunctionType or "<locals>" not in fn.__qualname__:
        return
    if fn.__defaults__ or fn.__kwdefaults__:
        raise _hiding_error(keep, fn, "is defined where it is used, and has default arguments")
    if hasattr(fn, "__wrapped__"):
        return
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        if not _is_no_value(cell):
            raise _hiding_error(keep, fn, f"uses {name!r} of the code around it")


def _is_no_value(cell: Any) -> bool:
    try:
        content = cell.cell_contents
    except ValueError:  # empty: it is assigned later, as a function that calls itself
        return True
    return callable(content) or isinstance(content, ModuleType | RuntimeContext | Function)


def _hiding_error(keep: str, fn: Any, why: str) -> TypeError:
    return TypeError(
        f"the answer of kept_call({keep!r}, ...) is kept under its arguments, and {fn!r:.200} "
        f"{why}: two different questions could have one name. {_CURE}"
    )
