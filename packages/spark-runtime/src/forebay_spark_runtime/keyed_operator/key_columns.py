"""Key columns: the Spark types that can be keys, and the SQL expression of their key group.

The key group is ``pmod(xxhash64(number of columns, normalised columns…), max parallelism)``.
`forebay_state_api.keys` documents how each type is normalised, and its functions compute the same
groups in Python. Numeric width does not matter: 1 as int and 1 as bigint are the same key.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs
from pyspark.sql import types as spark

from forebay_engine.execution.arguments import checked_key_alias
from forebay_engine.versions.format.key_types import KeyType
from forebay_engine.versions.format.keyed_by import KeyColumn
from forebay_spark_runtime.driver.options import missing_column_error
from forebay_state_api.errors import ConfigurationError

_DAY_US: Final = "86400000000"


def _decimal(column: str, kind: Any) -> str:
    # A scale may be negative where Spark allows it; `format_number` takes none that is.
    text = f"replace(format_number({column}, {max(kind.scale, 0)}), ',', '')"
    if kind.scale <= 0:
        return text
    return f"trim(TRAILING '.' FROM trim(TRAILING '0' FROM {text}))"


def _timestamp_ntz(column: str, _: Any) -> str:
    """Compute it field by field: subtracting timestamps would use the session's time zone."""
    return (
        f"(cast(unix_date(cast({column} as date)) as bigint) * {_DAY_US} "
        f"+ hour({column}) * 3600000000L + minute({column}) * 60000000L "
        f"+ cast(extract(SECOND FROM {column}) * 1000000 as bigint))"
    )


def _date(column: str, _: Any) -> str:
    return f"(cast(unix_date({column}) as bigint) * {_DAY_US})"


def _same(column: str, _: Any) -> str:
    return column


@attrs.frozen
class _KeyType:
    kind: str
    """Equal values in columns of one kind are the same key; see `forebay_state_api.keys.kind_of`.
    """
    python: Any
    """The Python type from which the key's codec is made."""
    expression: Callable[[str, Any], str]
    """SQL of the normalised column; see `forebay_state_api.keys`."""


_BIGINT: Final = _KeyType("integer", int, lambda column, _: f"cast({column} as bigint)")
_DOUBLE: Final = _KeyType("float", float, lambda column, _: f"(cast({column} as double) + 0.0D)")
_INSTANT: Final = _KeyType(
    "timestamp", datetime.datetime, lambda column, _: f"unix_micros({column})"
)
_KEY_TYPES: Final[dict[str, _KeyType]] = {
    "tinyint": _BIGINT,
    "smallint": _BIGINT,
    "int": _BIGINT,
    "bigint": _BIGINT,
    "float": _DOUBLE,
    "double": _DOUBLE,
    "decimal": _KeyType("decimal", decimal.Decimal, _decimal),
    "string": _KeyType("string", str, _same),
    "binary": _KeyType("binary", bytes, _same),
    "boolean": _KeyType("boolean", bool, _same),
    "date": _KeyType("date", datetime.date, _date),
    "timestamp": _INSTANT,
    "timestamp_ntz": _KeyType("timestamp_ntz", datetime.datetime, _timestamp_ntz),
}


def _name_of(kind: Any) -> str:
    name: str = kind.simpleString()
    return "decimal" if isinstance(kind, spark.DecimalType) else name.partition("(")[0]


def quoted(name: str) -> str:
    """Quote a column name for SQL."""
    return "`" + name.replace("`", "``") + "`"


@attrs.frozen
class KeyColumns:
    """The key columns of one keyed input."""

    names: tuple[str, ...]
    types: tuple[Any, ...]
    """Spark types, in the order of the names."""
    former: Mapping[str, str] = attrs.field(factory=dict)
    """Name → the name that it had in the stored state."""

    def __str__(self) -> str:
        """Return the names and types, for messages."""
        pairs = zip(self.names, self.types, strict=True)
        return ", ".join(f"{name} {kind.simpleString()}" for name, kind in pairs)

    def key_type(self) -> Any:
        """Return the Python type of keys: the column's type, or a tuple type for several."""
        python = [_KEY_TYPES[_name_of(kind)].python for kind in self.types]
        return python[0] if len(python) == 1 else tuple[tuple(python)]  # type: ignore[misc]  # known when it runs

    def group_expression(self, max_parallelism: int) -> str:
        """Return the SQL expression of the key group."""
        parts = [
            _KEY_TYPES[_name_of(kind)].expression(quoted(name), kind)
            for name, kind in zip(self.names, self.types, strict=True)
        ]
        count = f"cast({len(parts)} as bigint)"
        return f"cast(pmod(xxhash64({', '.join([count, *parts])}), {max_parallelism}) as int)"

    def kinds(self) -> list[str]:
        """Return the kind of each column, which connected inputs must have in common."""
        return [_KEY_TYPES[_name_of(kind)].kind for kind in self.types]

    def stored_type(self) -> KeyType:
        """Return the type of keys as an import needs it."""
        return KeyType(KeyType.of(self.key_type()).description, self.stored())

    def stored(self) -> list[KeyColumn]:
        """Return the columns as manifests have them."""
        pairs = zip(self.names, self.kinds(), strict=True)
        return [KeyColumn(name, kind, self.former.get(name, "")) for name, kind in pairs]


def key_columns(schema: Any, names: Sequence[str], uid: str, former: object = None) -> KeyColumns:
    """Return the key columns ``names`` of ``schema``; ``former`` is the ``key_alias`` of `keyed`.

    Raises `ConfigurationError` if ``names`` is empty, if a name is not a column or is given twice,
    if a column's type cannot be a key, or if ``former`` names no key column. ``uid`` names the
    operator in the message.
    """
    if not names:
        raise ConfigurationError(f"operator {uid!r}: keyed() needs at least one key column")
    for name in names:
        if not isinstance(name, str):
            raise ConfigurationError(
                f"operator {uid!r}: key columns are given by name, not as {name!r}"
            )
        if name not in schema.names:
            raise missing_column_error(name, "to key by", schema.names, uid)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(
            f"operator {uid!r}: {', '.join(twice)} is named twice among the key columns; name each "
            "column once"
        )
    types = tuple(schema[name].dataType for name in names)
    for name, kind in zip(names, types, strict=True):
        if _name_of(kind) not in _KEY_TYPES:
            raise ConfigurationError(
                f"operator {uid!r}: column {name!r} of type {kind.simpleString()} cannot be a key; "
                f"types that can: {', '.join(_KEY_TYPES)}. Key by a column computed from it"
            )
    return KeyColumns(tuple(names), types, checked_key_alias(former, names, uid))
