"""The part of a query's checkpoint that the driver passes to the tasks: its batches' times."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Self

import attrs


@attrs.frozen(kw_only=True)
class Checkpoint:
    """The location of the query's checkpoint, and the times at which its last batches were planned.

    Spark repeats a batch with the same time. So the time of the batch that made a version shows
    whether this checkpoint knows that batch, or whether a copy of the checkpoint planned it.
    """

    location: str
    times_ms: Mapping[int, int]
    """Batch → its time, for the newest batches; the times of older batches are not known here."""

    def time_of(self, version: int) -> int | None:
        """Return the time of the batch that made ``version``; ``None`` when it is not known."""
        return self.times_ms.get(version - 1)

    def text(self) -> str:
        """Return the checkpoint as text, for a session's setting."""
        return json.dumps([self.location, sorted(self.times_ms.items())])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the result of `text`."""
        location, times_ms = json.loads(text)
        return cls(location=location, times_ms=dict(map(tuple, times_ms)))
