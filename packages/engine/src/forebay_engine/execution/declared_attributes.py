"""The class attributes by which functions declare their calls and clients."""

from __future__ import annotations

from typing import Any, TypeVar

from forebay_state_api.calls.declared import Calls
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.clients import Clients

T = TypeVar("T", Calls, Clients)


def declared_calls(function: Any) -> Calls | None:
    """Return a function's `Calls`, if it declares any."""
    return _declared(function, "calls", Calls)


def declared_clients(function: Any) -> Clients | None:
    """Return a function's `Clients`, if it declares any."""
    return _declared(function, "clients", Clients)


def check_attributes(function: Any) -> None:
    """Raise `ConfigurationError` for attributes of these names that would have no effect."""
    declared_calls(function)
    declared_clients(function)


def _declared(function: Any, name: str, kind: type[T]) -> T | None:
    given = getattr(function, name, None)
    if given is None or isinstance(given, kind):
        return given
    if callable(given) and not isinstance(given, type):
        return None  # a user's method
    owner = getattr(function, "__qualname__", type(function).__qualname__)
    raise ConfigurationError(
        f"{owner}.{name} is a function's {kind.__name__}(...), not {given!r:.200}: write "
        f"{name} = {kind.__name__}(...), or give another attribute another name"
    )
