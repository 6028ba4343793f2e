"""Estimates of the memory that Python values take, for budgets that users set."""

from __future__ import annotations

import enum
import itertools
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

_ENTRIES: Final = 64
"""The number of entries that are measured as a sample of a table."""

_PARTS: Final = 16
"""The number of parts that are measured as a sample of a value; fewer in its parts."""

_LEAST_PARTS: Final = 4

_SPREAD: Final = 2_654_435_761
"""A prime near the golden ratio of 2³²: its multiples are spread evenly over any range."""

_WITHOUT_PARTS: Final = frozenset(
    {bool, bytes, float, int, str, type(None), date, datetime, timedelta, Decimal}
)
"""The classes of most values; none of them has attributes or slots to look for."""


def memory_size(value: Any) -> int:
    """Estimate the bytes of memory that a value takes, with all that it contains.

    Of a large container, a sample of sixteen parts is measured.
    Objects that several parts share are counted for each.
    """
    return _size(value, _PARTS)


def memory_sizes(values: Collection[Any]) -> Iterable[int]:
    """Estimate the bytes of memory that each value takes, as `memory_size`."""
    if _WITHOUT_PARTS.issuperset(map(type, values)):
        return map(sys.getsizeof, values)
    return map(memory_size, values)


def table_size(cells: Mapping[Any, Any]) -> int:
    """Estimate the bytes of memory that a dictionary of many cells takes.

    The first 64 keys and contents stand for all, so the time does not depend on the number of
    cells: well under a millisecond for flat contents. Accurate within 20 % for cells of similar
    size.
    """
    first = itertools.chain.from_iterable(itertools.islice(cells.items(), _ENTRIES))
    return sys.getsizeof(cells) + _extrapolated([*first], 2 * len(cells), _PARTS)


def _size(value: Any, parts: int) -> int:
    own = sys.getsizeof(value, 64)
    if type(value) in _WITHOUT_PARTS or isinstance(value, enum.Enum):
        return own
    if isinstance(value, dict):
        some = itertools.chain.from_iterable(_sample([*value.items()], parts))
        return own + _extrapolated([*some], 2 * len(value), parts)
    if isinstance(value, list | tuple):
        return own + _extrapolated(_sample(value, parts), len(value), parts)
    if isinstance(value, set | frozenset):
        return own + _extrapolated(_sample([*value], parts), len(value), parts)
    attributes = getattr(value, "__dict__", None)
    if attributes:
        return own + _size(attributes, parts)
    names = [slot for cls in type(value).__mro__ for slot in getattr(cls, "__slots__", ())]
    slots = [getattr(value, name, None) for name in names]
    return own + _extrapolated(slots, len(slots), parts)


def _sample(values: Sequence[Any], parts: int) -> Sequence[Any]:
    """Return a sample of values in uneven steps, since contents may alternate."""
    count = len(values)
    if count <= parts:
        return values
    return [values[at * _SPREAD % count] for at in range(parts)]


def _extrapolated(some: Collection[Any], count: int, parts: int) -> int:
    """Return the size of ``count`` parts of a value, of which ``some`` are measured."""
    if not some:
        return 0
    inner = max(_LEAST_PARTS, parts // 2)
    return sum(_size(part, inner) for part in some) * count // len(some)
