"""The user's functions on their way to the workers, with errors that name the operator."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Final

from forebay_state_api._engine.engine import function_name
from forebay_state_api.errors import ConfigurationError

_IN_OPEN: Final = (
    "Make what cannot be pickled (clients, locks, sessions) in open(), or keep it in a module"
)


def pickled(value: Any, what: str, advice: str, dumps: Callable[[Any], bytes]) -> bytes:
    """``value`` for the workers; `ConfigurationError` with ``advice`` if it cannot travel.

    ``dumps`` is that of a cloudpickle: Spark's workers have a copy of their own.
    """
    try:
        return dumps(value)
    except Exception as error:
        message = f"{what} cannot be sent to the workers: {_shown(error)}. {advice}"
        raise ConfigurationError(message) from error


def pickled_function(fn: Any, uid: str, dumps: Callable[[Any], bytes]) -> bytes:
    """An operator's function for the workers."""
    return pickled(fn, f"operator {uid!r}: {function_name(fn)}", _IN_OPEN, dumps)


def unpickled(data: bytes, what: str) -> Any:
    """A fresh copy in a worker; `ConfigurationError` if something in it cannot be made there."""
    try:
        return pickle.loads(data)  # noqa: S301 - it comes from the job's own driver
    except Exception as error:
        message = (
            f"{what} arrived in a worker and cannot be unpickled there: {_shown(error)}. Install "
            "what it imports where workers run, and make what cannot be pickled (clients, locks, "
            "sessions) in the worker"
        )
        raise ConfigurationError(message) from error


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
