"""Picks what to compact: for few layers to read, little garbage, and little rewriting.

Three rules apply to the layers of a version, numbered from the oldest (0) to the newest:

* garbage: when the layers above the oldest outgrow it by `LsmOptions.space_amplification`,
  all are merged; nothing else removes data that was overwritten or deleted long ago.
* tiers: when there are more layers than `LsmOptions.goal`, the newest ones are merged, each
  older one only if it is not much larger than those above it. So layers grow geometrically with
  age, and a cell is rewritten only a few times.
* relief: when there are more layers than `LsmOptions.max_runs`, some are merged at once, and
  the commit waits for that.

Layers that a pending job reads are left alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, TypeAlias

from forebay_backend_lsm.layers import FileSlice, Layer
from forebay_backend_lsm.options import LsmOptions

Window: TypeAlias = tuple[int, int]
"""Adjacent layers: start and stop (exclusive)."""

MOST_PENDING: Final = 3
"""Most jobs of one subtask that may be pending at once."""
_STEP: Final = 3.0
"""A tier takes in the next older layer while that is at most this many times its size."""


def choose(
    layers: Sequence[Layer], busy: Collection[FileSlice], options: LsmOptions, pending: int
) -> Window | None:
    """Return the window to submit after a commit.

    Returns ``None`` if nothing is worth compacting, or if too many jobs are pending.
    """
    full = is_garbage_due(layers, options)
    if full and pending:
        return None  # pending jobs must end first; new ones would delay the full merge for ever
    if full and len(layers) < options.max_runs:
        return (0, len(layers))
    taken = sum(layer.meets(busy) for layer in layers)
    if pending >= MOST_PENDING or len(layers) - taken + pending <= options.goal:
        return None
    # At the limit leave the newest layer free, so that relief finds two to merge after a commit.
    return _tier(layers, busy, len(layers) - (len(layers) >= options.max_runs))


def is_garbage_due(layers: Sequence[Layer], options: LsmOptions) -> bool:
    """Return whether potential garbage has outgrown the oldest layer.

    Lanes of one compaction count as one layer, because they cannot be merged.
    """
    if not layers:
        return False
    lowest = layers[0]
    lanes = [layer for layer in layers if lowest.job is not None and layer.job == lowest.job]
    oldest = lanes or [lowest]
    above = [layer for layer in layers if layer not in oldest]
    kept = sum(layer.size for layer in oldest)
    entries = sum(layer.entries for layer in oldest)
    hidden = min(1.0, sum(layer.deletes for layer in above) / entries) if entries else 0.0
    garbage = sum(layer.size for layer in above) + hidden * kept
    return bool(above) and garbage > (options.space_amplification - 1) * kept


def relief(
    layers: Sequence[Layer], busy: Collection[FileSlice], options: LsmOptions
) -> Window | None:
    """Return the window to compact before the commit ends, so that `max_runs` layers are left.

    Picks, among the windows that achieve this, the cheapest in relation to the layers it removes.
    Merging only as many layers as necessary would make the next commit merge the result again.
    """
    width = len(layers) - options.max_runs + 1
    if width < 2:  # noqa: PLR2004 - one layer is nothing to merge
        return None
    count = len(layers)
    windows = [(i, j) for i in range(count) for j in range(i + width, count + 1)]
    free = [w for w in windows if not _is_busy(layers, w, busy) and not _is_lanes(layers, w)]
    return min(free, key=lambda w: _size(layers, w) / (w[1] - w[0] - 1) ** 2, default=None)


def _tier(layers: Sequence[Layer], busy: Collection[FileSlice], stop: int) -> Window | None:
    start, size = stop, 0
    while start and not layers[start - 1].meets(busy):
        if stop - start > 1 and layers[start - 1].size > _STEP * size:
            break
        start -= 1
        size += layers[start].size
    window = (start, stop)
    alone = stop - start < 2  # noqa: PLR2004 - one layer is nothing to merge
    return None if alone or _is_lanes(layers, window) else window


def _is_busy(layers: Sequence[Layer], window: Window, busy: Collection[FileSlice]) -> bool:
    return any(layer.meets(busy) for layer in layers[window[0] : window[1]])


def _is_lanes(layers: Sequence[Layer], window: Window) -> bool:
    jobs = {layer.job for layer in layers[window[0] : window[1]]}
    return len(jobs) == 1 and None not in jobs


def _size(layers: Sequence[Layer], window: Window) -> int:
    return sum(layer.size for layer in layers[window[0] : window[1]])
