"""Reasons why a value does not fit a type, in words that do not need knowledge of pyarrow."""

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
    """Return the text of ``error``, reworded where it refers to pyarrow's internals."""
    text = str(error)
    return next((plain for found, plain in _PLAIN if found.search(text)), text)
