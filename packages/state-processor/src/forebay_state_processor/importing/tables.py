"""Tables to import, read in batches: Arrow tables, data sets, and Arrow streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_state_api.errors import ConfigurationError
from forebay_state_processor.reading.arrow_types import arrow

if TYPE_CHECKING:
    import pyarrow as pa

ROWS: Final = 16_384
"""Rows that are converted at a time."""


class TableSource:
    """One table, which can be read several times."""

    def __init__(self, table: Any) -> None:
        """``table`` is a `pyarrow.Table`, a data set, or has ``__arrow_c_stream__``.

        Raises `ConfigurationError` for anything else.
        """
        import pyarrow.dataset

        arrow()
        self._dataset: Final = _dataset(pyarrow.dataset, table)

    @property
    def columns(self) -> list[str]:
        """The names of the columns; `ConfigurationError` if one is damaged."""
        try:
            return list(self._dataset.schema.names)
        except UnicodeDecodeError as error:
            raise ConfigurationError(
                f"a table has a column whose name is no text: {error}"
            ) from error

    def count(self) -> int:
        """Return the number of rows."""
        rows: int = self._dataset.count_rows()
        return rows

    def batches(self, columns: list[str], what: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows, at most `ROWS` at a time; ``what`` is the table, for messages."""
        lib = arrow()
        try:
            for batch in self._dataset.to_batches(
                columns=columns, batch_size=ROWS, batch_readahead=1, fragment_readahead=1
            ):
                batch.validate(full=True)  # Arrow reads damaged offsets and text from files as is
                yield batch
        except (lib.ArrowException, OSError) as error:
            raise ConfigurationError(f"{what} cannot be read: {error}") from error


def _dataset(lib: Any, table: Any) -> Any:
    if isinstance(table, lib.Dataset):
        return table
    if not isinstance(table, arrow().Table):
        if not hasattr(table, "__arrow_c_stream__"):
            raise ConfigurationError(
                f"a table is a pyarrow.Table, a pyarrow.dataset.Dataset or an object with "
                f"__arrow_c_stream__, not {type(table).__name__}"
            )
        table = arrow().table(table)
    return lib.dataset(table)


def _source(table: Any) -> TableSource | None:
    return None if table is None else TableSource(table)


def _sources(tables: Mapping[str, Any]) -> dict[str, TableSource]:
    return {state: TableSource(table) for state, table in tables.items()}


@attrs.frozen(kw_only=True)
class TableLayout:
    """The columns of a table, and their meaning."""

    columns: Sequence[str]
    state: str | None = None
    """The state whose rows they are; ``None`` if the columns are states, or timers."""
    is_timers: bool = False
    value: Mapping[str, Any] | None = None
    """The type whose plain values the state's values are in Arrow; ``None``: the stored type."""
    user_key: Mapping[str, Any] | None = None
    """The type of a map's keys."""


@attrs.frozen
class Tables:
    """The tables of one import, as `TableSource` takes them, each opened once."""

    states: Mapping[str, TableSource] = attrs.field(factory=dict, converter=_sources)
    """State → the table of its rows."""
    operator: TableSource | None = attrs.field(default=None, converter=_source)
    """A table with a column for each of several states."""
    timers: TableSource | None = attrs.field(default=None, converter=_source)
    """The table of timers."""

    @classmethod
    def of(cls, tables: Any, timers: Any = None) -> Tables:
        """Return the tables that a caller passed: a mapping from states to tables, or one table."""
        if isinstance(tables, Mapping):
            return cls(states=tables, timers=timers)
        return cls(operator=tables, timers=timers)

    def __bool__(self) -> bool:
        """Return whether there is any table."""
        return bool(self.every)

    @property
    def layouts(self) -> list[TableLayout]:
        """The layout of each table."""
        named = [TableLayout(state=name, columns=one.columns) for name, one in self.states.items()]
        if self.operator is not None:
            named.append(TableLayout(columns=self.operator.columns))
        if self.timers is not None:
            named.append(TableLayout(columns=self.timers.columns, is_timers=True))
        return named

    @property
    def every(self) -> Sequence[TableSource]:
        """All tables."""
        others = (self.operator, self.timers)
        return [*self.states.values(), *(one for one in others if one is not None)]
