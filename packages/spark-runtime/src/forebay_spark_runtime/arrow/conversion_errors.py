"""Why a value does not fit, without the words of pyarrow that say nothing to its author."""

from __future__ import annotations

import re
from typing import Final

_PLAIN: Final = (
    (
        re.compile("precision .* does not fit into precision"),
        "it has more digits before the point than the type",
    ),
    (
        re.compile("Rescaling .* data loss"),
        "it has more digits than the type, after the point or before it; quantize() rounds",
    ),
    (
        re.compile("too large to (fit in|convert to) C |too big to convert"),
        "it is outside the range of the type",
    ),
)


def plain_reason(error: Exception) -> str:
    """What ``error`` says; in plain words where it speaks of what is inside pyarrow."""
    text = str(error)
    return next((plain for found, plain in _PLAIN if found.search(text)), text)
