"""State of a stopped ``transformWithState`` query as the tables of an import.

Spark computes the columns: values of one column without their struct, and the times when values
with a TTL were written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - the customary name

from forebay_spark_runtime.importing.frames import Frames
from forebay_spark_runtime.importing.stored_values import described, is_bare
from forebay_spark_runtime.importing.tws_query import CONTENT, EXPIRY, KEY
from forebay_spark_runtime.keyed_operator.key_columns import KeyColumns
from forebay_state_api.contract.changes import Shape
from forebay_state_api.errors import ConfigurationError
from forebay_state_processor.importing.tables import TableLayout
from forebay_state_processor.reading.columns import key_names

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from forebay_spark_runtime.importing.mapping import TakenState
    from forebay_spark_runtime.importing.tws_query import TwsQuery, Variable
    from forebay_state_processor.importing.declared_states import DeclaredStates
    from forebay_state_processor.reading.stored_states import StateInfo

_FARTHEST_MS: Final = 9_000_000_000_000_000
"""A time that Spark can represent and Python cannot, so that an error names its row."""

Part = Callable[["Column"], "Column"]
"""Struct of a value, an element or a map's key → a column of it."""


class TwsTables:
    """The tables of the variables that are taken, and of timers."""

    def __init__(
        self,
        found: TwsQuery,
        taken: Sequence[TakenState],
        declared: DeclaredStates,
        *,
        timers: bool,
    ) -> None:
        """``timers``: whether they are taken, too."""
        infos = declared.infos()
        names = key_names(declared.key_codec())
        frames: list[DataFrame] = []
        layouts: list[TableLayout] = []
        for one in taken:
            table = _Table(found.variables[one.variable], infos[one.state], one.ttl_us)
            frames.append(_keyed(found, names, table.rows, **table.columns()))
            layouts.append(table.layout(frames[-1].columns))
        if timers:
            assert found.timers is not None
            assert found.domain is not None
            at = F.timestamp_millis(_bounded(F.col(CONTENT)))
            frame = _keyed(found, names, found.timers, domain=F.lit(found.domain.value), time=at)
            frames.append(frame)
            layouts.append(TableLayout(columns=frame.columns, is_timers=True))
        if not frames:
            raise ConfigurationError(
                f"operator {declared.uid!r}: everything is left behind, so there is nothing to "
                "import"
            )
        self.frames: Final = Frames(frames, layouts, "import_tws()")
        types = tuple(field.dataType for field in found.key)
        self.keys: Final = [KeyColumns(tuple(names), types)] * len(frames)


def _keyed(found: TwsQuery, names: Sequence[str], rows: DataFrame, **columns: Column) -> DataFrame:
    """Return a table's rows, with the grouping columns renamed to the table's columns."""
    keys = [
        F.col(KEY).getField(name).alias(new)
        for name, new in zip(found.key.names, names, strict=True)
    ]
    return rows.select(*keys, *(column.alias(name) for name, column in columns.items()))


class _Table:
    """The table of one variable."""

    def __init__(self, variable: Variable, info: StateInfo, ttl_us: int | None) -> None:
        self._variable: Final = variable
        self._info: Final = info
        self._ttl_us: Final = ttl_us

    @property
    def rows(self) -> DataFrame:
        """Spark's rows, without lists and maps that are empty: to us they do not exist."""
        rows = self._variable.rows
        return rows if self._info.shape is Shape.POINT else rows.where(F.size(CONTENT) > 0)

    def layout(self, columns: Sequence[str]) -> TableLayout:
        """Return the layout, with the Spark types of values that have no declared type."""
        spec, user_key = self._info.spec, self._variable.user_key
        return TableLayout(
            columns=columns,
            state=self._info.name,
            value=_type(self._variable.value, spec.value.description),
            user_key=None
            if user_key is None or spec.user_key is None
            else _type(user_key, spec.user_key.description),
        )

    def columns(self) -> Mapping[str, Column]:
        """Return the columns ``value``, and ``written`` for a variable with a TTL."""
        struct = _unwrapped(self._variable.value, self._info.spec.value.description)
        ttl_us = self._ttl_us
        if ttl_us is None:
            return {"value": self._nested(struct)}
        return {
            "value": self._nested(lambda one: struct(one.getField("value"))),
            "written": self._nested(lambda one: _written(one.getField(EXPIRY), ttl_us)),
        }

    def _nested(self, part: Part) -> Column:
        """Return the content with ``part`` of each value."""
        content, info = F.col(CONTENT), self._info
        if info.shape is Shape.POINT:
            return part(content)
        if info.shape is Shape.LIST:
            return F.transform(content, part)
        struct = self._variable.user_key
        assert struct is not None
        assert info.spec.user_key is not None
        user_key = _unwrapped(struct, info.spec.user_key.description)
        values = F.transform_values(content, lambda _, one: part(one))
        return F.transform_keys(values, lambda key, _: user_key(key))


def _type(struct: Any, description: Mapping[str, Any]) -> Mapping[str, Any]:
    bare = is_bare(struct.names, description)
    return described(struct[0].dataType if bare else struct, description)


def _unwrapped(struct: Any, description: Mapping[str, Any]) -> Part:
    """Return the part of a struct that stands for a value."""
    if not is_bare(struct.names, description):
        return lambda one: one
    (name,) = struct.names
    return lambda one: one.getField(name)


def _written(expiry_ms: Column, ttl_us: int) -> Column:
    ttl = F.lit(min(ttl_us, _FARTHEST_MS))
    return F.timestamp_micros(_bounded(expiry_ms) * F.lit(1_000) - ttl)


def _bounded(at_ms: Column) -> Column:
    return F.greatest(F.least(at_ms, F.lit(_FARTHEST_MS)), F.lit(-_FARTHEST_MS))
