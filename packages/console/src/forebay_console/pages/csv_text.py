"""Numbers as CSV: all of a plot, where a page has no room for them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence


def csv_text(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table with a line of names; a number that is not known is empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    return text.getvalue()
