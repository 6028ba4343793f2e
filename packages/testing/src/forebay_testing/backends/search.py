"""Draws the kit's examples: the same ones in each run, unless a class asks for fresh ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final, TypeVar

import attrs
from hypothesis import HealthCheck, seed, settings

SHRINKING_S: Final = 30
"""How long hypothesis looks for a smaller example: its own limit is longer than a test's."""

T = TypeVar("T", bound=Callable[..., Any])


def fresh_seed() -> int:
    """Return an unused seed, for classes that search further and are not run by default."""
    return random.getrandbits(32)


@attrs.frozen
class Search:
    """The settings with which the properties of one class are searched."""

    seed: int | None
    """The seed; ``None`` draws the same examples in each run."""
    factor: int = 1
    """The factor on the number of examples."""

    def limits(self, examples: int, **more: Any) -> settings:
        """Return settings for a number of examples, however long each takes."""
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
        """Return ``test``, a function or a state machine's factory, with the seed, if any."""
        return test if self.seed is None else seed(self.seed)(test)
