"""`Groups`: the rows of a slice by key, and what is computed for each key.

No method makes a call of Python for each row or key. Keys are in the order of their first rows.
Results for keys have an element for each key, results for rows an element for each row; all are
Arrow arrays, which cannot be changed.

A ``where`` mask has an element for each row or for each key: of a key that it leaves out, all rows
are left out. Null counts as false.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay_engine.columns.arrays import as_mask, flags, numbers, of_length
from forebay_engine.columns.keys import DistinctKeys, python_keys
from forebay_engine.columns.sums import (
    SumOverflowError,
    running_floats,
    running_ints,
    total_ints,
)

_SMALL: Final = 1 << 16
"""Up to this many keys are sorted by 16 bits, several times as fast as by more."""


class Groups:
    """The distinct keys of some rows, and the rows of each; ``ctx.groups`` has those of a call."""

    def __init__(
        self,
        keys: DistinctKeys,
        columns: Sequence[pa.Array],
        names: Sequence[str],
        name_of: Callable[[Any], str | None] = lambda _: None,
    ) -> None:
        """``columns`` are the canonical key columns of the distinct keys, called ``names``.

        ``name_of`` returns the name of an input column, for errors.
        """
        self._found = keys
        self._columns = columns
        self._names = names
        self._name_of = name_of

    def __len__(self) -> int:
        """Return the number of keys."""
        return self._found.count

    def __repr__(self) -> str:
        """Return the numbers of keys and rows."""
        return f"Groups({len(self)} keys, {self.rows} rows)"

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self._found.index)

    @property
    def index(self) -> pa.Array:
        """For each row, the position of its key."""
        return pa.array(self._found.index)

    @property
    def keys(self) -> pa.RecordBatch:
        """The key columns, with a row for each key."""
        return pa.RecordBatch.from_arrays(list(self._columns), names=list(self._names))

    # -- rows of each key -----------------------------------------------------------------------

    def first_rows(self, where: Any = None) -> pa.Array:
        """Return the positions of the first row of each key, in the order of the rows.

        :param where: the rows or keys that count; a key without any has no position.
        """
        chosen = self.rows_where(where, "first_rows")
        if chosen is None:
            return pa.array(self._found.first)
        return pa.array(np.sort(self._ends_of(chosen, first=True)[1]))

    def last_rows(self, where: Any = None) -> pa.Array:
        """Return the positions of the last row of each key, in the order of the rows.

        :param where: the rows or keys that count; a key without any has no position.
        """
        chosen = self.rows_where(where, "last_rows")
        if chosen is None:
            return pa.array(np.sort(self._last))
        return pa.array(np.sort(self._ends_of(chosen, first=False)[1]))

    def first(self, values: Any, where: Any = None) -> pa.Array:
        """Return, for each key, the value in its first row, which may be null.

        :param values: a value for each row.
        :param where: the rows or keys that count; a key without any gets null.
        """
        return self._end(values, where, "first", first=True)

    def last(self, values: Any, where: Any = None) -> pa.Array:
        """Return, for each key, the value in its last row, which may be null.

        :param values: a value for each row.
        :param where: the rows or keys that count; a key without any gets null.
        """
        return self._end(values, where, "last", first=False)

    def spread(self, values: Any) -> pa.Array:
        """Return, for each row, the value of its key.

        :param values: a value for each key.
        """
        return self._per_key(values, "spread").take(self.index)

    # -- counts and sums ------------------------------------------------------------------------

    def count(self, values: Any = None, where: Any = None) -> pa.Array:
        """Return, for each key, its number of rows.

        :param values: a value for each row; with it nulls do not count.
        :param where: the rows or keys that count.
        """
        counted = self._counted(values, where, "count")
        return pa.array(self._sizes if counted is None else self._count(counted))

    def cumcount(self, start: Any = None, where: Any = None) -> pa.Array:
        """Return, for each row, the number of rows of its key up to and with it.

        :param start: a count for each key to begin with; null is 0. Default: 0.
        :param where: the rows or keys that count; other rows get the count so far.
        """
        counted = self._counted(None, where, "cumcount")
        ones = np.ones(self.rows, np.int64) if counted is None else counted.astype(np.int64)
        return self._cumulated(ones, start, "cumcount", None)

    def sum(self, values: Any, start: Any = None, where: Any = None) -> pa.Array:
        """Return, for each key, the sum of its values; null adds nothing.

        :param values: whole numbers or floats, one for each row.
        :param start: a sum for each key to begin with; null is 0. Default: 0.
        :param where: the rows or keys that count.

        Sums of whole numbers are exact: beyond 64 bits `OverflowError` names column and key. A
        float sum is that of a loop over the key's rows.
        """
        added = self._added(values, where, "sum")
        before = self._start(start, added.dtype, "sum")
        if self.rows and np.float64 in (added.dtype, before.dtype):
            sums = before.astype(np.float64)
            np.add.at(sums, self._found.index, added)
            return pa.array(sums)
        try:
            return pa.array(total_ints(added[self._order], self._starts, self._sizes, before))
        except SumOverflowError as error:
            raise self._overflow(error.position, values, "sum") from None

    def cumsum(self, values: Any, start: Any = None, where: Any = None) -> pa.Array:
        """Return, for each row, the sum of the values of its key up to and with it.

        The parameters and the errors are those of `sum`.
        """
        return self._cumulated(self._added(values, where, "cumsum"), start, "cumsum", values)

    # -- extremes -------------------------------------------------------------------------------

    def min(self, values: Any, where: Any = None) -> pa.Array:
        """Return, for each key, its least value that is not null; null if there is none.

        :param values: numbers, text, bytes, bools, dates or times, one for each row. NaN is greater
            than any other float.
        :param where: the rows or keys that count.
        """
        return self._extreme(values, where, "min", np.minimum)

    def max(self, values: Any, where: Any = None) -> pa.Array:
        """Return, for each key, its greatest value that is not null; null if there is none.

        The parameters are those of `min`.
        """
        return self._extreme(values, where, "max", np.maximum)

    # -- fills and masks ------------------------------------------------------------------------

    def ffill(self, values: Any, start: Any = None) -> pa.Array:
        """Return, for each row, the last value of its key that is not null, up to and with it.

        :param values: a value for each row.
        :param start: for each key, the value before its first row. Default: null.
        """
        given = self._per_row(values, "ffill")
        filled = given if start is None else self._joined(given, start)
        order = self._order
        valid = flags(given.is_valid())[order]
        at = np.where(valid, np.arange(self.rows), -1)
        latest = np.maximum.accumulate(at) if self.rows else at
        of_key = np.repeat(np.arange(len(self)), self._sizes)
        found = latest >= self._starts[of_key]
        source = np.where(found, order[np.maximum(latest, 0)], self.rows + of_key)
        positions = np.empty(self.rows, np.int64)
        positions[order] = source
        none = positions >= len(filled)
        return filled.take(pa.array(positions, mask=none if none.any() else None))

    def any(self, mask: Any, where: Any = None) -> pa.Array:
        """Return, for each key, whether a row of it has true.

        :param mask: true or false for each row; null is false.
        :param where: the rows or keys that count.
        """
        given = self._per_row_mask(mask, "any")
        chosen = self.rows_where(where, "any")
        return pa.array(self._count(given if chosen is None else given & chosen) > 0)

    def all(self, mask: Any, where: Any = None) -> pa.Array:
        """Return, for each key, whether no row of it has false.

        :param mask: true or false for each row; null is false.
        :param where: the rows or keys that count.
        """
        wrong = ~self._per_row_mask(mask, "all")
        chosen = self.rows_where(where, "all")
        return pa.array(self._count(wrong if chosen is None else wrong & chosen) == 0)

    def invert(self, mask: Any) -> pa.Array:
        """Return a mask of rows or keys with true and false exchanged; null becomes true."""
        array = as_mask(mask, "invert")
        self._check_length(array, "invert")
        return pc.invert(array)

    # -- for the engine -------------------------------------------------------------------------

    def keys_where(self, where: Any, what: str) -> Any:
        """Return a mask of keys as a NumPy array; ``None`` if all of them count.

        Of a mask of rows, the keys with any true row count. ``what`` is named in errors.
        """
        if where is None:
            return None
        array = as_mask(where, f"the mask of {what}")
        self._check_length(array, what)
        mask = flags(array)
        return mask if len(mask) == len(self) else self._count(mask) > 0

    @property
    def index_of_rows(self) -> Any:
        """`index`, as a NumPy array."""
        return self._found.index

    @property
    def first_row_of_keys(self) -> Any:
        """The position of each key's first row, as a NumPy array."""
        return self._found.first

    def python_keys(self) -> list[Any]:
        """Return the keys as the record face has them."""
        return python_keys(self._columns)

    def key_shown(self, key: int) -> str:
        """Return a key as text, for errors."""
        (shown,) = python_keys([column.slice(key, 1) for column in self._columns])
        return f"{shown!r:.200}"

    # -- parts ----------------------------------------------------------------------------------

    @cached_property
    def _sizes(self) -> Any:
        return np.bincount(self._found.index, minlength=len(self))

    @cached_property
    def _starts(self) -> Any:
        """The position of each key's first row in `_order`."""
        return np.cumsum(self._sizes) - self._sizes

    @cached_property
    def _order(self) -> Any:
        """The positions of the rows, key by key, each key's in their order."""
        index = self._found.index
        if len(self) <= _SMALL:
            return np.argsort(index.astype(np.uint16), kind="stable")
        packed = (index.astype(np.int64) << 32) | np.arange(self.rows)
        packed.sort()
        return packed & 0xFFFFFFFF

    @cached_property
    def _last(self) -> Any:
        """The position of each key's last row."""
        last = np.empty(len(self), np.int64)
        last[self._found.index] = np.arange(self.rows)  # the last write counts
        return last

    def _count(self, mask: Any) -> Any:
        """Return the number of true rows of each key."""
        return np.bincount(self._found.index[mask], minlength=len(self))

    def _per_row(self, values: Any, what: str) -> pa.Array:
        return of_length(values, self.rows, what, of="rows")

    def _per_key(self, values: Any, what: str) -> pa.Array:
        return of_length(values, len(self), what, of="keys")

    def _per_row_mask(self, mask: Any, what: str) -> Any:
        array = as_mask(mask, what)
        if len(array) != self.rows:
            raise ValueError(f"{what}: a mask of {len(array)} was given for {self.rows} rows")
        return flags(array)

    def _check_length(self, mask: pa.Array, what: str) -> None:
        if len(mask) not in (self.rows, len(self)):
            raise ValueError(
                f"the mask of {what} has {len(mask)} elements; there are {self.rows} rows and "
                f"{len(self)} keys"
            )

    def rows_where(self, where: Any, what: str) -> Any:
        """Return a mask of rows as a NumPy array; ``None`` if all of them count."""
        if where is None:
            return None
        array = as_mask(where, f"the mask of {what}")
        self._check_length(array, what)
        mask = flags(array)
        # With as many keys as rows, key and row are the same.
        return mask if len(mask) == self.rows else mask[self._found.index]

    def _counted(self, values: Any, where: Any, what: str) -> Any:
        """Return a mask of the rows that count and have a value; ``None`` if all do."""
        chosen = self.rows_where(where, what)
        if values is None or not (array := self._per_row(values, what)).null_count:
            return chosen
        valid = flags(array.is_valid())
        return valid if chosen is None else valid & chosen

    def _added(self, values: Any, where: Any, what: str) -> Any:
        """Return the numbers to add; those of nulls and of rows that do not count add nothing."""
        added, valid = numbers(self._per_row(values, what), what)
        counted = self.rows_where(where, what)
        if valid is not None:
            counted = valid if counted is None else valid & counted
        # -0.0 is the float that adds nothing to any other.
        return added if counted is None else np.where(counted, added, added.dtype.type(-0.0))

    def _start(self, start: Any, kind: Any, what: str) -> Any:
        if start is None:
            return np.zeros(len(self), kind)
        return numbers(self._per_key(start, f"the start of {what}"), f"the start of {what}")[0]

    def _cumulated(self, added: Any, start: Any, what: str, values: Any) -> pa.Array:
        before = self._start(start, added.dtype, what)
        ordered = added[self._order]
        if np.float64 in (added.dtype, before.dtype):
            run = running_floats(ordered, self._starts, self._sizes, before)
        else:
            try:
                run = running_ints(ordered, self._starts, self._sizes, before)
            except SumOverflowError as error:
                raise self._overflow(error.position, values, what) from None
        out = np.empty_like(run)
        out[self._order] = run
        return pa.array(out)

    def _overflow(self, position: int, values: Any, what: str) -> OverflowError:
        row = int(self._order[position])
        name = self._name_of(values)
        column = "the values" if name is None else f"column {name!r}"
        key = self.key_shown(int(self._found.index[row]))
        return OverflowError(
            f"{what} of {column} is beyond 64 bits for key {key}, at row {row} of the slice; cast "
            "the column to double, or add smaller numbers"
        )

    def _ends_of(self, chosen: Any, *, first: bool) -> tuple[Any, Any]:
        """Return the keys with chosen rows, and the position of the first or last one of each."""
        positions = np.flatnonzero(chosen)
        at = np.full(len(self), -1, np.int64)
        written = positions[::-1] if first else positions
        at[self._found.index[written]] = written  # the last write counts
        keys = np.flatnonzero(at >= 0)
        return keys, at[keys]

    def _end(self, values: Any, where: Any, what: str, *, first: bool) -> pa.Array:
        given = self._per_row(values, what)
        chosen = self.rows_where(where, what)
        if chosen is None:
            return given.take(pa.array(self._found.first if first else self._last))
        keys, rows = self._ends_of(chosen, first=first)
        at, missing = np.zeros(len(self), np.int64), np.ones(len(self), bool)
        at[keys], missing[keys] = rows, False
        return given.take(pa.array(at, mask=missing))

    def _extreme(self, values: Any, where: Any, what: str, better: Any) -> pa.Array:
        given = self._per_row(values, what)
        ranked, from_ranks = _ranked(given)
        counted = self._counted(given, where, what)
        index = self._found.index
        if counted is not None:
            ranked, index = ranked[counted], index[counted]
        found = np.zeros(len(self), ranked.dtype)
        found[index] = ranked  # any of the key's own, to begin with
        better.at(found, index, ranked)
        return from_ranks(found, np.bincount(index, minlength=len(self)) == 0)

    def _joined(self, values: pa.Array, start: Any) -> pa.Array:
        """Return the values of rows, and those of keys after them, in one type."""
        before = self._per_key(start, "the start of ffill")
        if values.type != before.type:
            try:
                values, before = _one_type(values, before)
            except pa.ArrowException as error:
                raise TypeError(
                    f"ffill: values of {values.type} begin with {before.type}: {error}"
                ) from error
        return pa.concat_arrays([values, before])


def _one_type(values: pa.Array, before: pa.Array) -> tuple[pa.Array, pa.Array]:
    if pa.types.is_null(values.type):
        return values.cast(before.type), before
    return values, before.cast(values.type)


def _ranked(values: pa.Array) -> tuple[Any, Callable[[Any, Any], pa.Array]]:
    """Return numbers in the order of the values, and what makes values of some of them again.

    The function takes the numbers and a mask of those to be null. The numbers of nulls are any. NaN
    is the greatest float.
    """
    kind = values.type
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind):
        found = pc.fill_null(values.cast(pa.int64()), 0).to_numpy()
        return found, lambda some, mask: pa.array(some, mask=mask).cast(kind)
    encoded = values.dictionary_encode()
    distinct = encoded.dictionary
    order = pc.sort_indices(distinct)  # NaN comes last
    ranks = np.zeros(len(distinct) or 1, np.int64)
    ranks[order.to_numpy()] = np.arange(len(distinct))
    by_rank = distinct.take(order)
    indices = pc.fill_null(encoded.indices, 0).to_numpy()
    return ranks[indices], lambda some, mask: by_rank.take(pa.array(some, mask=mask))


def group(
    columns: Sequence[pa.Array],
    names: Sequence[str],
    keys: DistinctKeys,
    name_of: Callable[[Any], str | None] = lambda _: None,
) -> Groups:
    """Return the groups of rows with canonical key columns ``columns``, and their ``keys``."""
    first = pa.array(keys.first)
    return Groups(keys, [column.take(first) for column in columns], names, name_of)
