"""Late rows: those whose event time the watermark has passed before their micro-batch."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Self

import attrs

from forebay_engine.isolation.json_rows import json_of_row
from forebay_engine.timers.instants import instant
from forebay_engine.timers.watermark import ALWAYS

PROCESS: Final = "process"
"""``late``: the function gets late rows like all others."""
DROP: Final = "drop"
"""``late``: late rows are counted, and the function does not get them."""
COLUMN: Final = "column"
"""``late``: a late row is emitted as a `LateRow`, and the function does not get it."""
LATE: Final = (PROCESS, DROP, COLUMN)

LATE_COLUMN: Final = "late"
"""The name of the column for late rows."""


@attrs.frozen(kw_only=True)
class LateRow:
    """An output row for a row that came too late, with ``late="column"``."""

    row: str
    """The input row as a JSON object, which Spark's ``from_json`` reads."""
    input: int
    """The number of the input that it came from: 1, or 2 for the second one."""
    watermark: datetime | None
    """The watermark of its micro-batch, in UTC; ``None`` before the first one."""

    @classmethod
    def of(cls, row: Any, side: int, watermark_us: int) -> Self:
        """Describe a row of input ``side``, from 0."""
        watermark = None if watermark_us == ALWAYS else instant(watermark_us)
        return cls(row=json_of_row(row), input=side + 1, watermark=watermark)
