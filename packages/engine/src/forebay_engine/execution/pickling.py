"""Pickle users' functions for the workers, with errors that name the operator."""

from __future__ import annotations

import inspect
import io
import pickle
from collections import ChainMap
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, ClassVar, Final

from forebay_engine.execution.record_methods import function_name
from forebay_state_api.errors import ConfigurationError

_IN_OPEN: Final = (
    "Make what cannot be pickled (clients, locks, sessions) in open(), or keep it in a module"
)


def pickled(value: Any, what: str, advice: str, dumps: Callable[[Any], bytes]) -> bytes:
    """Pickle ``value`` for the workers; `ConfigurationError` with ``advice`` if that fails.

    ``dumps`` is a cloudpickle's function: Spark's workers have their own copy of cloudpickle.
    """
    try:
        return dumps(value)
    except Exception as error:
        unfit = ", ".join(dict.fromkeys(_unfit(value, dumps)))
        where = f", in its {unfit}" if unfit else ""
        raise ConfigurationError(
            f"{what} cannot be sent to the workers: {_shown(error)}{where}. {advice}"
        ) from error


def _unfit(
    value: Any, dumps: Callable[[Any], bytes], seen: frozenset[int] = frozenset()
) -> Iterator[str]:
    """Yield the parts of ``value`` that cannot be pickled, also inside functions that it holds."""
    seen |= {id(value)}
    for name, one in _referenced_objects(value):
        if id(one) not in seen and not _fits(one, dumps):
            yield from (_unfit(one, dumps, seen) if inspect.isfunction(one) else (name,))


def _referenced_objects(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield, by name, the objects pickled with a function: fields, and variables it reads."""
    yield from ((f"field {name!r}", one) for name, one in getattr(function, "__dict__", {}).items())
    for code in (function, *vars(type(function)).values()):
        if inspect.isfunction(code):
            found = inspect.getclosurevars(code)
            for name, one in {**found.globals, **found.nonlocals}.items():
                if not name.startswith("__"):
                    yield f"variable {name!r}", one


def _fits(value: Any, dumps: Callable[[Any], bytes]) -> bool:
    try:
        dumps(value)
    except Exception:  # noqa: BLE001 - this may run any user code
        return False
    return True


def pickled_function(fn: Any, uid: str, dumps: Callable[[Any], bytes]) -> bytes:
    """Pickle an operator's function for the workers."""
    return pickled(fn, f"operator {uid!r}: {function_name(fn)}", _IN_OPEN, dumps)


def naming_files(cloudpickle: Any) -> Callable[[Any], bytes]:
    """Return ``dumps`` of the module ``cloudpickle``; code keeps the names of its files.

    From 3.1.3 on its own ``dumps`` names every file ``<dynamic-code>``, in errors too.
    """
    reduced = cloudpickle.Pickler.dispatch_table[CodeType]

    def with_file(code: CodeType) -> tuple[Any, ...]:
        make, arguments, *_ = reduced(code)
        return _code, (make, arguments, code.co_filename)

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # a module that may be missing
        dispatch_table: ClassVar = ChainMap(
            {CodeType: with_file}, cloudpickle.Pickler.dispatch_table
        )

    def dumps(value: Any) -> bytes:
        with io.BytesIO() as file:
            Pickler(file).dump(value)
            return file.getvalue()

    return dumps


def _code(make: Callable[..., CodeType], arguments: tuple[Any, ...], file: str) -> CodeType:
    return make(*arguments).replace(co_filename=file)


def unpickled(data: bytes, what: str, loads: Callable[[bytes], Any] = pickle.loads) -> Any:
    """Unpickle a fresh copy in a worker; `ConfigurationError` if that fails there."""
    try:
        return loads(data)
    except Exception as error:
        raise ConfigurationError(
            f"{what} arrived in a worker and cannot be unpickled there: {_shown(error)}. Install "
            "what it imports where workers run, and make what cannot be pickled (clients, locks, "
            "sessions) in the worker"
        ) from error


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
