"""A mapping whose values are made when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final, TypeVar

T = TypeVar("T")


class MadeOnce(Mapping[str, T]):
    """Makes the value of each name once; thread-safe."""

    def __init__(self, names: Collection[str], make: Callable[[str], T]) -> None:
        """``names`` are in order, and never change."""
        self._names: Final = names
        self._make: Final = make
        self._made: Final[dict[str, T]] = {}

    def __getitem__(self, name: str) -> T:
        found = self._made.get(name)
        if found is not None:
            return found
        if name not in self._names:
            raise KeyError(name)
        # Of two threads that make one, both get the first.
        return self._made.setdefault(name, self._make(name))

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
