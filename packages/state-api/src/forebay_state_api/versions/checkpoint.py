"""What the checkpoint of a query says about its batches, as the driver passes it to the tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Self

import attrs


@attrs.frozen(kw_only=True)
class Checkpoint:
    """Where the query's checkpoint is, and at what times its last batches were planned.

    Spark repeats a batch with its time. So the time of the batch that made a version tells whether
    this checkpoint knows that batch, or a copy of it planned one of its own.
    """

    location: str
    times_ms: Mapping[int, int]
    """Batch → its time, of the newest batches; those of older ones are not known here."""

    def time_of(self, version: int) -> int | None:
        """Time of the batch that made ``version``; ``None`` when it is not known."""
        return self.times_ms.get(version - 1)

    def text(self) -> str:
        """The checkpoint as text, for a setting of a session."""
        return json.dumps([self.location, sorted(self.times_ms.items())])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Inverse of `text`."""
        location, times_ms = json.loads(text)
        return cls(location=location, times_ms=dict(map(tuple, times_ms)))
