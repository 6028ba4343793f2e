"""The scale of an axis: from 0 to a round number."""

from __future__ import annotations

import math
from typing import Final, Self

import attrs

_ROUND: Final = (1.0, 2.0, 2.5, 5.0, 10.0)


@attrs.frozen
class Scale:
    """An axis from 0 to ``top``."""

    top: float

    @classmethod
    def over(cls, largest: float) -> Self:
        """Return the scale up to the round number at or above ``largest``."""
        if largest <= 0:
            return cls(1.0)
        power = 10.0 ** math.floor(math.log10(largest))
        return cls(next(step * power for step in _ROUND if step * power >= largest * 0.9999))

    @property
    def ticks(self) -> tuple[float, float, float]:
        """The labelled values, the largest first."""
        return self.top, self.top / 2, 0.0

    def share(self, value: float) -> float:
        """Return where a value is: 0 at the origin, 1 at the top."""
        return min(1.0, max(0.0, value / self.top))
