"""Gives a function the clients of a test in place of those that it declares."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.clients import Clients


def with_clients(function: Any, fakes: Mapping[str, Any] | None, uid: str) -> Any:
    """Return ``function``, with ``fakes`` in place of the clients of the same names."""
    if not fakes:
        return function
    declared = getattr(function, "clients", None)
    factories = dict(declared.factories) if isinstance(declared, Clients) else {}
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
