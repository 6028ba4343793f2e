"""Functions inside states: how values are reduced or aggregated."""

from __future__ import annotations

import abc
import inspect
from typing import Any, Generic, TypeVar

from forebay_state_api.errors import ConfigurationError

T = TypeVar("T")
IN = TypeVar("IN")
ACC = TypeVar("ACC")
OUT = TypeVar("OUT")


class ReduceFunction(Generic[T]):
    """Merges two values of one type into one."""

    @abc.abstractmethod
    def reduce(self, first: T, second: T) -> T:
        """Return the merged value; ``first`` is the stored value, ``second`` the new one."""


class AggregateFunction(Generic[IN, ACC, OUT]):
    """Folds values into an accumulator of another type; the result is computed on reading."""

    @abc.abstractmethod
    def create_accumulator(self) -> ACC:
        """Return a fresh accumulator; called at the first `add` of a key."""

    @abc.abstractmethod
    def add(self, value: IN, accumulator: ACC) -> ACC:
        """Return the accumulator with ``value`` added; it may change and return ``accumulator``."""

    @abc.abstractmethod
    def get_result(self, accumulator: ACC) -> OUT:
        """Return the value that reading the state gives."""

    def merge(self, first: ACC, second: ACC) -> ACC:
        """Return both accumulators merged; only ``merge_namespaces`` calls it."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define merge(first, second)")


def check_defined(function: object) -> None:
    """Refuse a function without a method that its class requires; it may be misspelt.

    Raises `ConfigurationError`.
    """
    cls = type(function)
    own = getattr(function, "__dict__", {})
    methods = {
        name: method for base in reversed(cls.__mro__) for name, method in vars(base).items()
    }
    missing = [
        methods[name]
        for name in sorted(methods)
        if getattr(methods[name], "__isabstractmethod__", False) and name not in own
    ]
    if missing:
        raise ConfigurationError(
            f"{cls.__qualname__} does not define {' and '.join(map(_spelled, missing))}"
        )


def check_no_life(function: object, where: str) -> None:
    """Refuse ``open`` and ``close`` on a function inside states or of ``.reduce(...)``.

    Nothing would call them. ``where`` names the use in the error. Raises `ConfigurationError`.
    """
    if not isinstance(function, ReduceFunction | AggregateFunction):
        return
    defined = [name for name in ("open", "close") if hasattr(type(function), name)]
    if defined:
        raise ConfigurationError(
            f"{where}: {type(function).__qualname__} defines {' and '.join(defined)}, which is "
            "never called: make what it needs in __init__, or in open() of the function that "
            "declares the state"
        )


def check_plain(function: AggregateFunction[Any, Any, Any], where: str) -> None:
    """Refuse methods that await or yield: a state calls them while it answers.

    ``where`` is as above. Raises `ConfigurationError`.
    """
    names = ("create_accumulator", "add", "get_result", "merge")
    found = [name for name in names if not is_plain(getattr(function, name))]
    if found:
        raise ConfigurationError(
            f"{where}: {type(function).__qualname__} defines {' and '.join(found)} as async or a "
            "generator; they are plain methods. Await in the function that adds to the state"
        )


def is_plain(method: Any) -> bool:
    """Return whether a callable neither awaits nor yields, as its definition shows."""
    called = method if inspect.isroutine(method) else type(method).__call__
    return not (
        inspect.iscoroutinefunction(called)
        or inspect.isgeneratorfunction(called)
        or inspect.isasyncgenfunction(called)
    )


def _spelled(method: Any) -> str:
    _, *parameters = inspect.signature(method).parameters
    return f"{method.__name__}({', '.join(parameters)})"
