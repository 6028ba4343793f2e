"""Aggregate functions that both faces have, and that add to many keys without a loop over rows."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay_engine.columns.arrays import as_array, flags
from forebay_state_api.job.aggregation import AggregateFunction

if TYPE_CHECKING:
    from forebay_engine.columns.groups import Groups


class Count(AggregateFunction[Any, int, int]):
    """The number of the values; its accumulators are of type ``int``."""

    def create_accumulator(self) -> int:
        """Return 0."""
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        """Count one more."""
        del value
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        """Return the count."""
        return accumulator

    def merge(self, first: int, second: int) -> int:
        """Return the sum of both counts."""
        return first + second


class Mean(AggregateFunction[float, tuple[int, float], float]):
    """The mean of floats; its accumulators are of type ``tuple[int, float]``, count and sum."""

    def create_accumulator(self) -> tuple[int, float]:
        """Return a count and a sum of 0."""
        return 0, 0.0

    def add(self, value: float, accumulator: tuple[int, float]) -> tuple[int, float]:
        """Count and add the value."""
        return accumulator[0] + 1, accumulator[1] + value

    def get_result(self, accumulator: tuple[int, float]) -> float:
        """Return the sum by the count."""
        return accumulator[1] / accumulator[0]

    def merge(self, first: tuple[int, float], second: tuple[int, float]) -> tuple[int, float]:
        """Return the sums of both counts and of both sums."""
        return first[0] + second[0], first[1] + second[1]


_KINDS_OF_COUNT: Final = ("int64",)
_KINDS_OF_MEAN: Final = ("int64", "float64")
_NUMBERS: Final = ("int64", "float64")


def reduced(
    reduce: Any, kind: str, groups: Groups, values: pa.Array, *, before: pa.Array, where: Any
) -> pa.Array | None:
    """Return stored values with others reduced into them; ``None`` if it takes a loop.

    ``reduce`` is `operator.add`, `min` or `max`; ``before`` is null for keys without a value.
    """
    if reduce is operator.add and kind in _NUMBERS:
        # A sum that begins with -0.0 begins with its first value.
        nothing = -0.0 if kind == "float64" else 0
        return groups.sum(values, pc.fill_null(before, nothing), where)
    if reduce not in (min, max) or kind not in (*_NUMBERS, "str", "bytes", "date"):
        return None
    if kind == "float64" and (_has_no_order(values) or _has_no_order(before)):
        return None
    found = (groups.min if reduce is min else groups.max)(values, where)
    element_wise = pc.min_element_wise if reduce is min else pc.max_element_wise
    return element_wise(before, found.cast(before.type))


def _has_no_order(array: pa.Array) -> bool:
    """Return whether there are floats of which Python's ``min`` takes the one that comes first."""
    found = array.to_numpy(zero_copy_only=False)
    return bool((np.isnan(found) | ((found == 0) & np.signbit(found))).any())


def aggregated(
    function: Any,
    kinds: tuple[str, ...],
    groups: Groups,
    values: Any,
    *,
    before: list[pa.Array],
    where: Any,
) -> list[pa.Array] | None:
    """Return the accumulators' columns with values added; ``None`` if it takes a loop."""
    if type(function) is Count and kinds == _KINDS_OF_COUNT:
        counts = groups.count(values, where)
        return [pc.add_checked(pc.fill_null(before[0], 0), counts)]
    if type(function) is Mean and kinds == _KINDS_OF_MEAN:
        counts = groups.count(values, where)
        added = as_array(values, "add_many").cast(pa.float64())
        return [
            pc.add_checked(pc.fill_null(before[0], 0), counts),
            groups.sum(added, pc.fill_null(before[1], 0.0), where),
        ]
    return None


def results(function: Any, columns: list[pa.Array]) -> pa.Array | None:
    """Return the results of accumulators in columns; ``None`` if it takes a loop."""
    if type(function) is Count:
        return columns[0]
    if type(function) is Mean:
        return pc.divide(columns[1], columns[0].cast(pa.float64()))
    return None


def added_rows(groups: Groups, values: Any, where: Any, what: str) -> Any:
    """Return a mask of NumPy of the rows whose values are added."""
    array = as_array(values, what)
    valid = flags(array.is_valid())
    chosen = groups.rows_where(where, what)
    return valid if chosen is None else valid & chosen
