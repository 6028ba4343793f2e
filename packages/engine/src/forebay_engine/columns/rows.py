"""`Rows`: the columns of a slice, which a batch function gets and may return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay_engine.columns.arrays import as_array, as_mask, flags


class Rows:
    """Columns of one length, by name; nothing changes them.

    With two keyed inputs the columns are those of `first` and `second`: each has an element for
    every row of both inputs, in their order, which is null in the other input's rows.
    """

    def __init__(
        self,
        columns: Mapping[str, pa.Array],
        length: int,
        *,
        sides: Sequence[Mapping[str, pa.Array]] = (),
        is_second: pa.Array | None = None,
        chosen: pa.Array | None = None,
        late: pa.Array | None = None,
    ) -> None:
        """Take the columns; the engine's own arguments come after the length.

        ``sides`` are the columns of two inputs. ``chosen`` is a mask of the rows that count, in the
        view of one of them. ``late`` is `is_late`.
        """
        self._columns = dict(columns)
        self._length = length
        self._sides = sides
        self._is_second = is_second
        self._chosen = chosen
        self._late = late

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Self:
        """Return the rows of a batch of Arrow."""
        return cls(dict(zip(batch.schema.names, batch.columns, strict=True)), batch.num_rows)

    def __len__(self) -> int:
        """Return the number of elements of each column."""
        return self._length

    def __repr__(self) -> str:
        """Return the number of rows and the names of the columns."""
        return f"Rows({len(self)} rows: {', '.join(self._all_names())})"

    def __iter__(self) -> NoReturn:
        """Refuse to iterate: a batch function works on columns."""
        raise TypeError(
            "rows have columns, such as rows['amount'], and no iterator; .to_arrow().to_pylist() "
            "makes dicts of them"
        )

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self._columns)

    def __getitem__(self, name: str) -> pa.Array:
        """Return a column, as an Arrow array."""
        column = self._columns.get(name)
        if column is None:
            self._no_column(name)
        return column

    def __contains__(self, name: object) -> bool:
        """Return whether there is a column of that name."""
        return name in self._columns

    # -- two inputs -----------------------------------------------------------------------------

    @property
    def is_second(self) -> pa.Array:
        """For each row, whether it is one of the second input."""
        if self._is_second is None:
            self._one_input("is_second")
        return self._is_second

    @property
    def first(self) -> Rows:
        """The view of the first input: its columns, null in rows of the second one.

        What is made of it (`append`, `filter`) and returned has the rows of the first input alone.
        """
        return self._side(0)

    @property
    def second(self) -> Rows:
        """The view of the second input, as `first`."""
        return self._side(1)

    @property
    def is_late(self) -> pa.Array:
        """For each row, whether its event time is not after the watermark; null without a time."""
        if self._late is None:
            raise ValueError("rows.is_late needs event times: pass event_time= to keyed()")
        return self._late

    # -- other rows -----------------------------------------------------------------------------

    def take(self, positions: Any) -> Rows:
        """Return the rows at some positions, in that order.

        :param positions: whole numbers, as `Groups.first_rows` returns them; null is refused.
        """
        given = as_array(positions, "take")
        if pa.types.is_null(given.type):
            given = given.cast(pa.int64())
        if not pa.types.is_integer(given.type):
            raise TypeError(f"take takes positions of rows, not values of {given.type}")
        if given.null_count:
            raise ValueError("take: a position is null")
        if self._chosen is not None and pc.any(pc.invert(self._chosen.take(given))).as_py():
            raise ValueError("take: a position is that of a row of the other input")
        return self._of(lambda column: column.take(given), len(given))

    def filter(self, mask: Any) -> Rows:
        """Return the rows where a mask has true; null is false."""
        given = as_mask(mask, "filter")
        if len(given) != len(self):
            raise ValueError(f"filter: a mask of {len(given)} was given for {len(self)} rows")
        if self._chosen is not None:
            given = pc.and_(given, self._chosen)
        return self.take(pa.array(np.flatnonzero(flags(given))))

    def append(self, name: str, values: Any) -> Rows:
        """Return the rows with one more column, or with another one in the place of ``name``.

        :param name: the name of the column.
        :param values: its values, one for each row: in a view of one input, one for each row of
            both.
        """
        given = as_array(values, f"append({name!r}, …)")
        if len(given) != len(self):
            raise ValueError(
                f"append: column {name!r} has {len(given)} values for {len(self)} rows"
            )
        if self._sides:
            raise ValueError("there are two inputs: append to rows.first or to rows.second")
        return Rows({**self._columns, name: given}, len(self), chosen=self._chosen)

    def select(self, *names: str) -> Rows:
        """Return the rows with some of the columns, in that order."""
        columns = {name: self[name] for name in names}
        return Rows(columns, len(self), chosen=self._chosen)

    def to_arrow(self) -> pa.RecordBatch:
        """Return the rows as a batch of Arrow: of a view of one input, its rows alone."""
        if self._sides:
            raise ValueError("there are two inputs: take rows.first or rows.second")
        if self._chosen is not None:
            return self.filter(self._chosen).to_arrow()
        if not self._columns:
            return pa.RecordBatch.from_arrays([], names=[])
        return pa.RecordBatch.from_arrays([*self._columns.values()], names=self.names)

    def as_dicts(self) -> list[dict[str, Any]]:
        """Return each row as a dict of its input's columns, in order."""
        if not self._sides:
            return self.to_arrow().to_pylist()  # type: ignore[no-any-return]  # pyarrow is untyped
        both = [Rows(side, len(self)).as_dicts() for side in self._sides]
        return [both[of_second][row] for row, of_second in enumerate(self.is_second.to_pylist())]

    def name_of(self, column: Any) -> str | None:
        """Return the name of one of the arrays that the rows have handed out, if it is one."""
        for columns in (self._columns, *self._sides):
            for name, own in columns.items():
                if own is column:
                    return name
        return None

    # -- parts ----------------------------------------------------------------------------------

    def _of(self, made: Any, length: int) -> Rows:
        """Return rows of ``length`` whose columns are ``made`` of these."""
        return Rows(
            {name: made(column) for name, column in self._columns.items()},
            length,
            sides=[{n: made(column) for n, column in side.items()} for side in self._sides],
            is_second=None if self._is_second is None else made(self._is_second),
            late=None if self._late is None else made(self._late),
        )

    def _side(self, side: int) -> Rows:
        if self._is_second is None:
            self._one_input("second" if side else "first")
        chosen = self._is_second if side else pc.invert(self._is_second)
        return Rows(self._sides[side], len(self), chosen=chosen, late=self._late)

    def _all_names(self) -> Iterator[str]:
        yield from self._columns
        for side in self._sides:
            yield from side

    def _no_column(self, name: str) -> NoReturn:
        if self._sides:
            raise KeyError(
                f"there are two inputs: take column {name!r} of rows.first or of rows.second"
            )
        raise KeyError(f"there is no column {name!r}; the columns are {', '.join(self.names)}")

    def _one_input(self, what: str) -> NoReturn:
        raise ValueError(f"rows.{what} is for two inputs, and there is one")
