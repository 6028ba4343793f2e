"""The decisions of one simulation, drawn from a seed or given.

A decision is a number, and 0 is the quietest one: nothing fails, nobody dies, the first actor goes
on. So a simulation is shrunk by replacing its numbers by smaller ones, and what follows the last
given one is quiet.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from random import Random
from typing import Final, Self, TypeVar

T = TypeVar("T")

_TIMES: Final = "x"


class Choices:
    """Draws decisions, and keeps them in `made`."""

    def __init__(self, random: Random | None, given: Sequence[int] = ()) -> None:
        """Decide as ``given``; from then on by ``random``, or always 0 without one."""
        self._random = random
        self._given = given
        self.made: Final[list[int]] = []

    @classmethod
    def of_seed(cls, seed: int) -> Self:
        """Return the decisions of a seed."""
        return cls(Random(seed))

    def index(self, count: int) -> int:
        """Return a number from 0 to ``count - 1``."""
        at = len(self.made)
        if at < len(self._given):
            drawn = min(self._given[at], count - 1)
        else:
            drawn = 0 if self._random is None else self._random.randrange(count)
        self.made.append(drawn)
        return drawn

    def one_of(self, options: Sequence[T]) -> T:
        """Return one of ``options``, the first of which is the quietest."""
        return options[self.index(len(options))]

    def once_in(self, times: int) -> bool:
        """Return true once in ``times`` on average."""
        return self.index(times) == times - 1


def text_of(made: Sequence[int]) -> str:
    """Return decisions as text for a command line: ``0x40.17.3`` is 40 zeros, 17 and 3."""
    runs = ((value, len([*same])) for value, same in groupby(made))
    return ".".join(f"{value}{_TIMES}{count}" if count > 1 else f"{value}" for value, count in runs)


def parsed(text: str) -> list[int]:
    """Return the decisions that `text_of` wrote; `ValueError` for any other text."""
    found: list[int] = []
    for part in filter(None, text.split(".")):
        value, _, count = part.partition(_TIMES)
        found += [int(value)] * int(count or 1)
    return found
