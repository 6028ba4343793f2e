"""How the kit draws examples: the same ones in each run, unless a class asks for fresh ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, TypeVar

import attrs
from hypothesis import HealthCheck, seed, settings

SHRINKING_S: Final = 30
"""For so long hypothesis looks for a smaller example: its own limit is longer than a test's."""

T = TypeVar("T", bound=Callable[..., Any])


def fresh_seed() -> int:
    """A seed that nobody has used: for classes that search on, and are not run by default."""
    return random.getrandbits(32)


@attrs.frozen
class Search:
    """What the properties of one class are searched with."""

    seed: int | None
    """``None``: the examples are the same in each run."""
    factor: int = 1
    """So many times as many examples."""

    def limits(self, examples: int, **more: Any) -> settings:
        """So many examples, however long each takes."""
        return settings(
            max_examples=examples * self.factor,
            derandomize=self.seed is None,
            database=None,
            print_blob=self.seed is not None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            **more,
        )

    def seeded(self, test: T) -> T:
        """``test``, a function or what makes a state machine, with this seed if there is one."""
        return test if self.seed is None else seed(self.seed)(test)
