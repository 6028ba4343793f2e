"""Gives a function the clients and calls of a test in place of those that it declares."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

from forebay_engine.execution.declared_attributes import declared_calls, declared_clients
from forebay_engine.execution.record_calls import CallTry
from forebay_state_api.calls.declared import Calls
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.clients import Clients


def with_clients(function: Any, fakes: Mapping[str, Any] | None, uid: str) -> Any:
    """Return ``function``, with ``fakes`` in place of the clients of the same names."""
    if not fakes:
        return function
    declared = declared_clients(function)
    factories = {} if declared is None else dict(declared.factories)
    for name, fake in fakes.items():
        if name not in factories:
            raise ConfigurationError(
                f"operator {uid!r}: clients= has {name!r}, and the function declares "
                f"{', '.join(factories) or 'no clients'}. Declare it with the class attribute "
                f"clients = Clients({name}=...)"
            )
        factories[name] = partial(nullcontext, fake)
    function.clients = Clients(**factories)
    return function


def with_calls(function: Any, on_call: Callable[[CallTry], Awaitable[Any]] | None, uid: str) -> Any:
    """Return ``function``, each try of whose calls ``on_call`` makes."""
    if on_call is None:
        return function
    calls = copy.copy(declared_calls(function) or Calls())
    calls.stand_in = on_call
    try:
        function.calls = calls
    except AttributeError as error:
        raise ConfigurationError(
            f"operator {uid!r}: on_call= is for functions that can have the attribute calls, not "
            f"{function!r:.200}. Wrap it in a function"
        ) from error
    return function
