"""Shrink the decisions of a failing simulation: fewer and quieter ones break the same promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

MOST_TRIES: Final = 400


def shrunk(
    decisions: Sequence[int], fails: Callable[[Sequence[int]], bool], most: int = MOST_TRIES
) -> list[int]:
    """Return decisions for which ``fails`` is true, after at most ``most`` calls of it.

    First the end is cut off, then parts are replaced by zeros and left out, smaller and smaller
    ones; at last single numbers become smaller.
    """
    best = [*decisions]
    for attempt in islice(_Attempts(best), most):
        if attempt.changed != best and fails(attempt.changed):
            best[:] = attempt.changed
            attempt.kept = True
    while best and best[-1] == 0:  # as quiet as nothing
        best.pop()
    return best


class _Attempt:
    """Decisions to try; ``kept`` becomes true if they fail as well."""

    def __init__(self, changed: list[int]) -> None:
        self.changed = changed
        self.kept = False


class _Attempts:
    """Yields attempts to simplify ``best``, which changes meanwhile."""

    def __init__(self, best: list[int]) -> None:
        self._best = best

    def __iter__(self) -> Iterator[_Attempt]:
        yield from self._cut()
        size = len(self._best) // 2
        while size:
            yield from self._replaced(size, lambda part: [0] * len(part))
            yield from self._replaced(size, lambda _: [])
            size //= 2
        yield from self._replaced(1, lambda part: [part[0] // 2])

    def _cut(self) -> Iterator[_Attempt]:
        """Halve the length as long as that works, then cut off smaller ends."""
        size = len(self._best) // 2
        while size:
            attempt = _Attempt(self._best[: len(self._best) - size])
            yield attempt
            if not attempt.kept:
                size //= 2
            size = min(size, len(self._best) // 2)

    def _replaced(self, size: int, replace: Callable[[list[int]], list[int]]) -> Iterator[_Attempt]:
        start = 0
        while start < len(self._best):
            part = self._best[start : start + size]
            changed = replace(part)
            if changed == part:
                start += size
                continue
            attempt = _Attempt([*self._best[:start], *changed, *self._best[start + size :]])
            yield attempt
            if not attempt.kept or changed:
                start += size
