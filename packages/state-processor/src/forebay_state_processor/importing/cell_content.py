"""Content of cells from values of Arrow columns: admitted by the stored types, with times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from forebay_state_api.contract.changes import Shape
from forebay_state_processor.importing.plain_values import null_stays, plain_value_of
from forebay_state_processor.reading.rows import us_of

if TYPE_CHECKING:
    from forebay_state_api.codecs import ValueCodec
    from forebay_state_processor.reading.stored_states import StateInfo

Content = Callable[[Any, Any, int], Any]
"""(value, time or times of last access or ``None``, now in µs) → the content of a cell."""


Admit = Callable[[Any], Any]
"""Value of an Arrow column → value of a cell."""
Description = Mapping[str, Any]


def content_of(
    info: StateInfo, value: Description | None = None, user_key: Description | None = None
) -> Content:
    """Return a function that makes the content of a state's cells.

    ``value`` and ``user_key`` are those of a `TableLayout`. The function raises `TypeError`,
    `ValueError`, `ArithmeticError` or `KeyError` for a value that does not fit.
    """
    values = _admitting(info.spec.value, value)
    if info.shape is Shape.MAP:
        codec = info.spec.user_key
        assert codec is not None
        return _map(info, values, _addressed(codec, _admitting(codec, user_key)))
    return (_point if info.shape is Shape.POINT else _list)(info, values)


def _admitting(codec: ValueCodec, description: Description | None) -> Admit:
    plain, admit = plain_value_of(description or codec.description), codec.admit
    if plain is None:
        return admit
    convert = null_stays(plain)
    return lambda one: admit(convert(one))


def _addressed(codec: ValueCodec, admit: Admit) -> Admit:
    address = codec.address
    return admit if address is None else lambda one: address(admit(one))


def _point(info: StateInfo, value: Admit) -> Content:
    if not info.has_ttl:
        return lambda one, _, __: value(one)
    return lambda one, written, now_us: (_us(written, now_us), value(one))


def _list(info: StateInfo, value: Admit) -> Content:
    def content(elements: Any, written: Any, now_us: int) -> list[Any]:
        values = [*map(value, _collection(elements))]
        if not info.has_ttl:
            return values
        times = [None] * len(values) if written is None else written
        return [(_us(at, now_us), one) for at, one in zip(times, values, strict=True)]

    return content


def _map(info: StateInfo, value: Admit, user_key: Admit) -> Content:
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
        raise ValueError(
            "the value is empty: leave the row out, or make the value null if the row has other "
            "states"
        )
    return found


def _us(written: Any, now_us: int) -> int:
    return now_us if written is None else instant_us(written)


def instant_us(at: Any) -> int:
    """Return a time in µs since the epoch; `TypeError` for anything but a ``datetime``."""
    if not isinstance(at, datetime):
        raise TypeError(f"a time is a timestamp, not {at!r}")
    return us_of(at)
