"""Key groups: compute the group of a key, and the groups of a subtask.

The group of a key is ``pmod(xxhash64(n, c1, …, cn), max parallelism)``: Spark's ``xxhash64`` over
the number of key columns and the *normalised* key columns. Spark computes it in the JVM when it
routes rows; `key_group_of` computes the same number in Python. Normalising makes the group
independent of the width of a column's type, so that a column may go from int to bigint, or from
``decimal(10, 1)`` to ``decimal(12, 2)``, without moving a key.

How each Spark type is normalised, in Spark SQL (``c`` is the column), and the Python value for it:

* the number ``n`` of columns comes first: ``cast(n as bigint)``
* tinyint, smallint, int, bigint (``int``): ``cast(c as bigint)``
* float, double (``float``): ``cast(c as double) + 0.0D``
* boolean, string, binary (``bool``, ``str``, ``bytes``): ``c``
* decimal(p, s) (``Decimal``): ``replace(format_number(c, s), ',', '')``; if ``s > 0``, without
  trailing zeros: ``trim(TRAILING '.' FROM trim(TRAILING '0' FROM …))``
* date (``date``): ``cast(unix_date(c) as bigint) * 86400000000``
* timestamp (aware ``datetime``): ``unix_micros(c)``
* timestamp_ntz (naive ``datetime``): ``cast(unix_date(cast(c as date)) as bigint) * 86400000000 +
  hour(c) * 3600000000L + minute(c) * 60000000L + cast(extract(SECOND FROM c) * 1000000 as bigint)``

Not ``cast(c as string)`` for decimals: its notation depends on ANSI mode. Not ``timestampdiff`` for
timestamp_ntz: it goes through the session's time zone, and is an hour off where that skips one.

Spark hashes a bigint as 8 bytes (little-endian), a double likewise, a boolean as a 4-byte int, a
string as UTF-8; the seed of the first column is 42, and of each other column the hash so far. Spark
skips nulls, so null keys must be refused before hashing; NaN is not allowed in a key.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NoReturn

import attrs
from xxhash import xxh64_intdigest

from forebay_state_api.errors import ConfigurationError

_SEED: Final = 42
_SIGN: Final = 1 << 63
_MODULUS: Final = 1 << 64
_DAY_US: Final = 86_400_000_000
_MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH_ORDINAL: Final = date(1970, 1, 1).toordinal()
_EPOCH_UTC: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_NAIVE: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - the epoch of timestamps without zone
_MAX_KEY_GROUPS: Final = 32768

_pack_bigint = struct.Struct("<q").pack
_pack_double = struct.Struct("<d").pack
_TRUE: Final = struct.pack("<i", 1)
_FALSE: Final = struct.pack("<i", 0)


@attrs.frozen
class KeyGroupRange:
    """Key groups ``start`` to ``end``, both inclusive; never empty."""

    start: int
    end: int

    def __attrs_post_init__(self) -> None:
        """Refuse an empty or negative range."""
        if not 0 <= self.start <= self.end:
            raise ValueError(f"not a range of key groups: {self.start}..{self.end}")

    def __iter__(self) -> Iterator[int]:
        """Iterate over the key groups, in ascending order."""
        return iter(range(self.start, self.end + 1))

    def __len__(self) -> int:
        """Return the number of key groups; at least 1."""
        return self.end - self.start + 1

    def __contains__(self, group: object) -> bool:
        """Return whether a key group is in the range."""
        return isinstance(group, int) and self.start <= group <= self.end

    def __str__(self) -> str:
        """Show the range as ``start..end``."""
        return f"{self.start}..{self.end}"

    def intersection(self, other: KeyGroupRange) -> KeyGroupRange | None:
        """Return the key groups in both ranges, or ``None`` if there are none."""
        start, end = max(self.start, other.start), min(self.end, other.end)
        return KeyGroupRange(start, end) if start <= end else None


def key_group_of(key: Any, max_parallelism: int) -> int:
    """Return the key group of ``key``: a bare value is one column, a tuple several.

    It is exactly the group that Spark computes (see the table above), for every supported key.
    ``max_parallelism`` is the number of key groups. Raises `ValueError` for ``None``, NaN, an int
    outside 64 bits or a Decimal that is not finite, and `TypeError` for a value of a type that is
    not in the table.
    """
    columns = key if isinstance(key, tuple) else (key,)
    if not columns:
        raise ValueError("a key has at least one column")
    digest = xxh64_intdigest(_pack_bigint(len(columns)), _SEED)
    for column in columns:
        digest = xxh64_intdigest(_normalised(column), digest)
    signed = digest - _MODULUS if digest >= _SIGN else digest
    return signed % max_parallelism


def canonical_key(key: Any) -> Any:
    """Return the form of ``key`` under which state is stored: equal keys have equal bytes.

    Times with a zone are converted to UTC, zero loses its sign, and Decimals lose trailing zeros;
    other keys are unchanged. A backend may look up cells by a key's encoding, so ``-0.0``, or the
    ``1.00`` of a wider decimal column, would otherwise be separate keys. And in the hour that a
    zone repeats in autumn, two different instants of that zone are equal and have one hash in
    Python; in UTC they are two keys, whatever the session's zone.
    """
    if isinstance(key, tuple):
        return tuple([canonical_key(column) for column in key])
    canonical = _CANONICAL.get(type(key))
    return key if canonical is None else canonical(key)


def kind_of(column: Any) -> str:
    """Return the kind of a key column's value; values of two kinds are never the same key.

    Raises `TypeError` for a value that cannot be in a key.
    """
    kind = _KINDS.get(type(column))
    if kind is None:
        _refuse(column)
    return f"{kind}_ntz" if kind == _TIMESTAMP and column.utcoffset() is None else str(kind)


def in_kinds(key: Any, kinds: Sequence[str]) -> Any:
    """Return a key whose times are of the kinds of its columns; one without a zone counts as UTC.

    ``kinds`` has the `kind_of` of each column, or an empty text where it is not known.
    """
    columns = key if isinstance(key, tuple) else (key,)
    made = tuple(map(_in_kind, columns, kinds))
    return made if isinstance(key, tuple) else made[0]


def canonical_decimal(column: Decimal) -> Decimal:
    """Return the `canonical_key` of a Decimal."""
    return Decimal(_shortest(column)) if column.is_finite() else column


def key_group_range_of(subtask: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """Return the key groups that subtask ``subtask`` of ``parallelism`` owns.

    The ranges of all subtasks are contiguous, disjoint, never empty, and differ in length by at
    most one. Raises `ConfigurationError` for parallelism outside ``1..max_parallelism`` or max
    parallelism outside ``1..32768``, and `ValueError` for a subtask that does not exist.
    """
    _check_parallelism(parallelism, max_parallelism)
    if not 0 <= subtask < parallelism:
        raise ValueError(f"subtask {subtask} does not exist at parallelism {parallelism}")
    start = -(-subtask * max_parallelism // parallelism)
    end = ((subtask + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(start, end)


def subtask_of(group: int, parallelism: int, max_parallelism: int) -> int:
    """Return the subtask that owns key group ``group``; the inverse of `key_group_range_of`."""
    return group * parallelism // max_parallelism


def default_max_parallelism(parallelism: int) -> int:
    """Return a max parallelism that leaves room to grow: at least 128, at most 32768.

    It is the smallest power of two that is at least one and a half times ``parallelism``, within
    those bounds. It is a suggestion for users who choose a value; an operator's default is 128,
    whatever its parallelism.
    """
    if parallelism < 1:
        raise ConfigurationError(f"parallelism must be at least 1, got {parallelism}")
    wanted = -(-3 * parallelism // 2)
    return min(max(1 << (wanted - 1).bit_length(), 128), _MAX_KEY_GROUPS)


def _check_parallelism(parallelism: int, max_parallelism: int) -> None:
    if not 1 <= max_parallelism <= _MAX_KEY_GROUPS:
        raise ConfigurationError(
            f"max parallelism must be within 1..{_MAX_KEY_GROUPS}, got {max_parallelism}"
        )
    if not 1 <= parallelism <= max_parallelism:
        raise ConfigurationError(
            f"parallelism must be within 1..{max_parallelism} (max parallelism), got {parallelism}"
        )


def _normalised(column: Any) -> bytes:
    normalise = _NORMALISE.get(type(column))
    if normalise is None:
        _refuse(column)
    return normalise(column)


def _refuse(column: Any) -> NoReturn:
    if column is None:
        raise ValueError("a key, or a column of it, is null")
    names = ", ".join(t.__name__ for t in _NORMALISE)
    raise TypeError(
        f"a key column must be one of {names}; got {type(column).__qualname__}: {column!r}"
    )


def _of_int(column: int) -> bytes:
    try:
        return _pack_bigint(column)
    except struct.error:
        raise ValueError(f"an integer key must fit 64 bits, got {column}") from None


def _of_bool(column: bool) -> bytes:  # noqa: FBT001 - the key itself
    return _TRUE if column else _FALSE


def _of_float(column: float) -> bytes:
    if math.isnan(column):
        raise ValueError("NaN cannot be a key: it equals nothing, not even itself")
    return _pack_double(column + 0.0)  # turns -0.0 into the equal 0.0


def _of_decimal(column: Decimal) -> bytes:
    if not column.is_finite():
        raise ValueError(f"a Decimal key must be finite, got {column}")
    return _shortest(column).encode()


def _shortest(column: Decimal) -> str:
    if not column:
        return "0"
    text = format(column, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _in_utc(column: datetime) -> datetime:
    return column if column.utcoffset() is None else column.astimezone(UTC)


def _in_kind(column: Any, kind: str) -> Any:
    if type(column) is not datetime:
        return column
    if kind == _TIMESTAMP and column.utcoffset() is None:
        return column.replace(tzinfo=UTC)
    return _in_utc(column).replace(tzinfo=None) if kind == f"{_TIMESTAMP}_ntz" else column


def _of_date(column: date) -> bytes:
    return _pack_bigint((column.toordinal() - _EPOCH_ORDINAL) * _DAY_US)


def _of_datetime(column: datetime) -> bytes:
    epoch = _EPOCH_NAIVE if column.utcoffset() is None else _EPOCH_UTC
    return _pack_bigint((column - epoch) // _MICROSECOND)


_NORMALISE: Final[dict[type, Callable[[Any], bytes]]] = {
    bool: _of_bool,
    int: _of_int,
    float: _of_float,
    str: str.encode,
    bytes: bytes,
    Decimal: _of_decimal,
    date: _of_date,
    datetime: _of_datetime,
}
_TIMESTAMP: Final = "timestamp"
_KINDS: Final[dict[type, str]] = {
    bool: "boolean",
    int: "integer",
    float: "float",
    str: "string",
    bytes: "binary",
    Decimal: "decimal",
    date: "date",
    datetime: _TIMESTAMP,
}
_CANONICAL: Final[dict[type, Callable[[Any], Any]]] = {
    float: lambda column: column + 0.0,
    Decimal: canonical_decimal,
    datetime: _in_utc,
}
"""Column types in which equal values may have different encodings."""
