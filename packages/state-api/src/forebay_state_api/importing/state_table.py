"""An Arrow table of one state, checked as a whole and then read as the cells that are stored.

The columns are those of `Snapshot.to_arrow`: the key (``key``, or ``key_1`` …), ``namespace``,
``value`` and, for a state with a TTL, ``written``. ``namespace`` and ``written`` may be left out.
``key_group`` and ``expires`` are ignored, since they follow from the key and from ``written``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from forebay_state_api.contract.changes import Changes, Shape
from forebay_state_api.engine.namespaces import canonical_namespace
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.importing.plain_values import from_json, plain_value_of
from forebay_state_api.keys import KeyGroupRange, canonical_key, key_group_of
from forebay_state_api.reading.columns import key_names
from forebay_state_api.reading.rows import us_of

if TYPE_CHECKING:
    import pyarrow as pa

    from forebay_state_api.codecs import ValueCodec
    from forebay_state_api.reading.stored_states import StateInfo

_ROWS: Final = 4_096
"""Rows that are converted at a time."""
_MISFITS: Final = (TypeError, ValueError, ArithmeticError, KeyError)


class StateTable:
    """The rows of one state, which fit its types."""

    def __init__(
        self, info: StateInfo, key: ValueCodec, table: pa.Table, *, groups: int, now_us: int
    ) -> None:
        """Check all rows.

        ``key`` is the codec of keys, ``groups`` the number of key groups, and ``now_us`` the time
        of last access of rows without one. Raises `ConfigurationError` that names the row.
        """
        self.info: Final = info
        self._what: Final = f"the table of state {info.name!r}"
        self._key: Final = key
        self._key_columns: Final = key_names(key)
        self._plain_key: Final = _key_parts(key)
        self._content: Final = _content_of(info)
        self._table: Final = self._with_known_columns(table)
        self._now_us: Final = now_us
        self._groups: Final = self._checked(groups)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._groups)

    def changes(self, groups: KeyGroupRange) -> Iterator[Changes]:
        """Yield the cells of some key groups, a page at a time."""
        mine = [at for at, group in enumerate(self._groups) if group in groups]
        for start in range(0, len(mine), _ROWS):
            by_namespace: dict[Any, list[tuple[Any, int, Any]]] = {}
            page = mine[start : start + _ROWS]
            rows = self._table.take(page).to_pylist()
            for at, row in zip(page, rows, strict=True):
                key, namespace, content = self._cell(row)
                by_namespace.setdefault(namespace, []).append((key, self._groups[at], content))
            for namespace, cells in by_namespace.items():
                yield Changes.whole(self.info.shape, namespace, cells)

    def _with_known_columns(self, table: pa.Table) -> pa.Table:
        needed = [*self._key_columns, "value"]
        times = ["written", "expires"] if self.info.has_ttl else []
        known = [*needed, "namespace", "key_group", *times]
        missing = [name for name in needed if name not in table.column_names]
        unknown = [name for name in table.column_names if name not in known]
        twice = len(set(table.column_names)) < len(table.column_names)
        if missing or unknown or twice:
            raise ConfigurationError(
                f"{self._what} has the columns {', '.join(table.column_names)}; it needs "
                f"{', '.join(needed)}, and may have {', '.join(known[len(needed) :])}, each once. "
                "forebay state export --state (without --flat) writes such tables"
            )
        derived = ("key_group", "expires")
        return table.select([name for name in table.column_names if name not in derived])

    def _checked(self, groups: int) -> list[int]:
        """Return the key group of each row; a row that does not fit, or comes twice, raises."""
        found: list[int] = []
        seen: set[Any] = set()
        address = self._key.address
        for batch in self._table.to_batches(max_chunksize=_ROWS):
            for row in batch.to_pylist():
                try:
                    key, namespace, _ = self._cell(row)
                    place = (key if address is None else address(key), namespace)
                    found.append(key_group_of(key, groups))
                except _MISFITS as error:
                    raise ConfigurationError(
                        f"{self._what}, row {len(found) + 1}: {error}"
                    ) from error
                if place in seen:
                    raise ConfigurationError(
                        f"{self._what}, row {len(found)}: the key {key!r} comes twice, with "
                        f"namespace {namespace!r}"
                    )
                seen.add(place)
        return found

    def _cell(self, row: dict[str, Any]) -> tuple[Any, Any, Any]:
        """Return key, namespace and content."""
        parts = [self._plain_key[at](row[name]) for at, name in enumerate(self._key_columns)]
        key = canonical_key(self._key.admit(tuple(parts) if len(parts) > 1 else parts[0]))
        namespace = row.get("namespace")
        if namespace is not None:
            namespace = canonical_namespace(from_json(namespace))
        return key, namespace, self._content(row["value"], row.get("written"), self._now_us)


def _key_parts(key: ValueCodec) -> Sequence[Callable[[Any], Any]]:
    """Return the conversions of the key's columns."""
    description = key.description
    parts = description["elements"] if description["type"] == "tuple" else [description]
    return [_null_stays(plain_value_of(part)) for part in parts]


_Content = Callable[[Any, Any, int], Any]
"""(value, time or times of last access or ``None``, now in µs) → the content of a cell."""


def _content_of(info: StateInfo) -> _Content:
    admit = info.spec.value.admit
    plain = _null_stays(plain_value_of(info.spec.value.description))

    def value(one: Any) -> Any:
        return admit(plain(one))

    return {Shape.POINT: _point, Shape.LIST: _list, Shape.MAP: _map}[info.shape](info, value)


def _point(info: StateInfo, value: Callable[[Any], Any]) -> _Content:
    if not info.has_ttl:
        return lambda one, _, __: value(one)
    return lambda one, written, now_us: (_us(written, now_us), value(one))


def _list(info: StateInfo, value: Callable[[Any], Any]) -> _Content:
    def content(elements: Any, written: Any, now_us: int) -> list[Any]:
        values = [*map(value, _collection(elements))]
        if not info.has_ttl:
            return values
        times = [None] * len(values) if written is None else written
        return [(_us(at, now_us), one) for at, one in zip(times, values, strict=True)]

    return content


def _map(info: StateInfo, value: Callable[[Any], Any]) -> _Content:
    codec = info.spec.user_key
    assert codec is not None
    plain_key = _null_stays(plain_value_of(codec.description))

    def user_key(one: Any) -> Any:
        admitted = codec.admit(plain_key(one))
        return admitted if codec.address is None else codec.address(admitted)

    def content(entries: Any, written: Any, now_us: int) -> dict[Any, Any]:
        found = {user_key(one): value(two) for one, two in _collection(entries)}
        if len(found) < len(entries):
            raise ValueError("a map has a user key twice")
        if not info.has_ttl:
            return found
        times = {user_key(one): at for one, at in written or ()}
        return {one: (_us(times.get(one), now_us), two) for one, two in found.items()}

    return content


def _collection(found: Any) -> Any:
    if not found:
        raise ValueError("the value is empty; leave the row out to remove the key")
    return found


def _us(written: Any, now_us: int) -> int:
    return now_us if written is None else us_of(written)


def _null_stays(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)
