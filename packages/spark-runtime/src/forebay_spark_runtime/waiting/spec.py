"""Checks of the options of a wait, on the driver, and the specification that workers receive.

`checked` checks all options that do not depend on the DataFrame.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
from pyspark import cloudpickle

from forebay_engine.execution import pickling
from forebay_engine.execution.arguments import COLUMN, FAIL
from forebay_engine.execution.record_methods import function_name
from forebay_spark_runtime.waiting.options import CARRY, WAIT, WaitOptions
from forebay_state_api.calls.checks import checked_instance, checked_policy
from forebay_state_api.calls.policies import Batch, CallPolicy, whole
from forebay_state_api.errors import ConfigurationError

LEAST_BUFFER: Final = 10_000
"""The default ``buffer`` is at least this number of answers, …"""
BUFFER_PER_CALL: Final = 100
"""… and at least this number for each call of the capacity."""


@attrs.frozen(kw_only=True)
class WaitSpec:
    """Everything that does not depend on the DataFrame; sent to the workers, pickled."""

    name: str
    """Name of the operator in messages, metrics and idempotency keys."""
    function_name: str
    """Name of ``fn`` in messages."""
    fn: Callable[..., Any]
    """The user's function of row, or rows, and client."""
    asynchronous: bool
    """Whether ``fn`` is a coroutine function. A plain function runs on threads."""
    policy: CallPolicy
    """The call policy. Its ``on_error`` is empty here: the worker makes it."""
    on_error: Any
    """``"fail"``, ``"column"`` or a function of row and error."""
    key: Callable[[Any], Any] | tuple[str, ...] | None
    """A function of the row, or the key columns; ``None`` for calls in any order."""
    resources: Callable[[], Any] | None
    """Returns the context manager that opens the client; ``None`` without a client."""
    digest: str = ""
    """Hash of the pickled ``resources``: tasks with equal hashes share a client."""


def checked(fn: Any, options: WaitOptions, *, ordered: bool) -> WaitSpec:
    """Check everything that does not depend on the DataFrame.

    :param fn: the user's function.
    :param ordered: whether answers keep the order of the rows.

    Raises `ConfigurationError`, which names the argument at fault.
    """
    name = _name(options.name, fn)
    asynchronous = _checked_function(fn, options.batch, name)
    capacity = whole(options.capacity, f"{name}: capacity", least=1)
    _check_pending(options.pending, name)
    spec = WaitSpec(
        name=name,
        function_name=function_name(fn),
        fn=fn,
        asynchronous=asynchronous,
        policy=checked_policy(
            name,
            try_timeout=options.try_timeout,
            timeout=options.timeout,
            retry=options.retry,
            rate=options.rate,
            hedge=options.hedge,
            capacity=capacity,
            buffer=_buffer(options.buffer, capacity, name),
            ordered=ordered,
            keyed=options.key is not None,
            batch=checked_instance(options.batch, Batch, f"{name}: batch"),
        ),
        on_error=_on_error(options.on_error, name),
        key=_key(options.key, name),
        resources=options.resources,
        digest=_digest(options.resources, name),
    )
    _check_together(spec)
    return spec


def _check_pending(given: Any, name: str) -> None:
    if given not in (WAIT, CARRY):
        raise ConfigurationError(f"{name}: pending is {WAIT!r} or {CARRY!r}, not {given!r}")


def _name(given: Any, fn: Any) -> str:
    if given is None:
        return function_name(fn)
    if not isinstance(given, str) or not given:
        raise ConfigurationError(f"name= is a word, not {given!r}")
    return given


def _checked_function(fn: Any, batch: Any, name: str) -> bool:
    """Check ``fn``; return whether it is a coroutine function."""
    argument = "row" if batch is None else "rows"
    wanted = f"async def fn({argument}, client), or a plain function of the same two"
    if isinstance(fn, type) or not callable(fn):
        raise ConfigurationError(f"{name}: the function is {wanted}; got {fn!r}")
    called = type(fn).__call__
    if any(
        inspect.isasyncgenfunction(one) or inspect.isgeneratorfunction(one) for one in (fn, called)
    ):
        raise ConfigurationError(
            f"{name}: the function returns an answer, or a list of them, and does not yield"
        )
    if not _takes(fn, 2):
        raise ConfigurationError(
            f"{name}: the function is {wanted}; {function_name(fn)}{inspect.signature(fn)} does "
            "not take these two (without resources=, client=None)"
        )
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(called)


def _takes(fn: Any, count: int) -> bool:
    try:
        signature = inspect.signature(fn)
    except (ValueError, TypeError):
        return True  # a function written in C, without a signature
    try:
        signature.bind(*range(count))
    except TypeError:  # the arguments do not fit the signature
        return False
    return True


def _buffer(given: Any, capacity: int, name: str) -> int:
    if given is None:
        return max(LEAST_BUFFER, capacity * BUFFER_PER_CALL)
    return whole(given, f"{name}: buffer", least=0)


def _on_error(given: Any, name: str) -> Any:
    if given in (FAIL, COLUMN):
        return given
    if callable(given) and not isinstance(given, type) and _takes(given, 2):
        if inspect.iscoroutinefunction(given):
            raise ConfigurationError(f"{name}: on_error is a plain function, not async")
        return given
    raise ConfigurationError(
        f'{name}: on_error is "fail", "column" or a function of the row and its error that '
        f"returns an answer, not {given!r}"
    )


def _key(given: Any, name: str) -> Any:
    if isinstance(given, str):
        return (given,)
    if given is None or (callable(given) and not isinstance(given, type) and _takes(given, 1)):
        return given
    if isinstance(given, Sequence) and given and all(isinstance(one, str) for one in given):
        return tuple(given)
    raise ConfigurationError(
        f"{name}: key is a column, several of them or a function of the row, not {given!r}"
    )


def _digest(resources: Any, name: str) -> str:
    if resources is None:
        return ""
    if not callable(resources) or not _takes(resources, 0):
        raise ConfigurationError(
            f"{name}: resources is a function without arguments that returns a context manager, "
            f"not {resources!r}"
        )
    return hashlib.sha256(pickled(resources, name)).hexdigest()


def _check_together(spec: WaitSpec) -> None:
    """Refuse options that exclude each other, and options that lack one that they need."""
    name, policy = spec.name, spec.policy
    if policy.keyed and policy.batch is not None:
        raise ConfigurationError(
            f"{name}: key= orders the calls of one row each, batch= makes calls for rows of any "
            "key; they do not go together"
        )
    if policy.hedge is not None and not spec.asynchronous:
        raise ConfigurationError(
            f"{name}: hedge= needs an async function; the slower of two calls of a plain one "
            "could not be cancelled"
        )


def pickled(value: Any, name: str) -> bytes:
    """Pickle ``value`` for the workers; raises `ConfigurationError` with the reason it cannot."""
    advice = "Open clients in resources=, not outside of the function"
    return pickling.pickled(
        value, f"{name}: the function with its options", advice, cloudpickle.dumps
    )
