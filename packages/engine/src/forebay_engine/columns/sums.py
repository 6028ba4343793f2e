"""Sums by key: whole numbers exactly, and floats one after another.

Values are in the order of their keys. A float sum of a key is the one that a loop over the key's
rows makes, to the last bit: it is never a difference of sums over several keys.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

_MOST: Final = (1 << 63) - 1
_LOW_BITS: Final = 32
_LOW: Final = (1 << _LOW_BITS) - 1
_HALF: Final = 1 << (_LOW_BITS - 1)
_SHORT: Final = 64
"""Keys with up to this many rows are summed together, a row of each at a time."""


class SumOverflowError(Exception):
    """A sum is beyond 64 bits; ``position`` is that of the value, in the order of the keys."""

    def __init__(self, position: int) -> None:
        """Take the position."""
        super().__init__(position)
        self.position = position


def running_ints(ordered: Any, starts: Any, sizes: Any, before: Any) -> Any:
    """Return the running sums of int64; ``before`` are the sums to begin with.

    Raises `SumOverflowError` for a sum beyond 64 bits.
    """
    if _fits(ordered, sizes, before):
        return _running(ordered, starts, sizes, before)
    high = _running(ordered >> _LOW_BITS, starts, sizes, before >> _LOW_BITS)
    low = _running(ordered & _LOW, starts, sizes, before & _LOW)
    high += low >> _LOW_BITS
    wrong = (high < -_HALF) | (high >= _HALF)
    if wrong.any():
        raise SumOverflowError(int(np.argmax(wrong)))
    return (high << _LOW_BITS) | (low & _LOW)


def total_ints(ordered: Any, starts: Any, sizes: Any, before: Any) -> Any:
    """Return the sum of each key; raises as `running_ints`, with the key's last position."""
    if _fits(ordered, sizes, before):
        return _total(ordered, starts) + before
    high = _total(ordered >> _LOW_BITS, starts) + (before >> _LOW_BITS)
    low = _total(ordered & _LOW, starts) + (before & _LOW)
    high += low >> _LOW_BITS
    wrong = (high < -_HALF) | (high >= _HALF)
    if wrong.any():
        key = int(np.argmax(wrong))
        raise SumOverflowError(int(starts[key] + sizes[key] - 1))
    return (high << _LOW_BITS) | (low & _LOW)


def _fits(ordered: Any, sizes: Any, before: Any) -> bool:
    """Return whether no sum can be beyond 64 bits, whatever the order of the values."""
    if not len(ordered):
        return True
    largest = max(int(ordered.max()), -int(ordered.min()))
    first = max(int(before.max()), -int(before.min()))
    return largest * int(sizes.max()) + first <= _MOST


def _running(ordered: Any, starts: Any, sizes: Any, before: Any) -> Any:
    # What wraps in the sum over all keys wraps back in the difference.
    run = np.cumsum(ordered)
    base = run[starts] - ordered[starts]
    run += np.repeat(before - base, sizes)
    return run


def _total(ordered: Any, starts: Any) -> Any:
    return np.add.reduceat(ordered, starts) if len(starts) else ordered[:0]


def running_floats(ordered: Any, starts: Any, sizes: Any, before: Any) -> Any:
    """Return the running sums of float64; ``before`` are the sums to begin with."""
    out = np.empty(len(ordered))
    for key in np.flatnonzero(sizes > _SHORT):
        start, end = int(starts[key]), int(starts[key] + sizes[key])
        out[start:end] = np.cumsum(np.concatenate([before[key : key + 1], ordered[start:end]]))[1:]
    short = np.flatnonzero(sizes <= _SHORT)
    # With the longest first, the keys that have another row are always the first ones.
    short = short[np.argsort(-sizes[short], kind="stable")]
    sums, at, left = before[short].astype(np.float64), starts[short], -sizes[short]
    for row in range(int(sizes[short].max(initial=0))):
        some = int(np.searchsorted(left, -row))
        sums[:some] += ordered[at[:some] + row]
        out[at[:some] + row] = sums[:some]
    return out
