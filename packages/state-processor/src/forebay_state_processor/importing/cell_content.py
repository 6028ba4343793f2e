"""Content of cells from values of Arrow columns: admitted by the stored types, with times."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from forebay_state_api.contract.changes import Shape
from forebay_state_processor.importing.plain_values import null_stays, plain_value_of
from forebay_state_processor.reading.rows import us_of

if TYPE_CHECKING:
    from forebay_state_processor.reading.stored_states import StateInfo

Content = Callable[[Any, Any, int], Any]
"""(value, time or times of last access or ``None``, now in µs) → the content of a cell."""


def content_of(info: StateInfo) -> Content:
    """Return the function that makes the content of a state's cells.

    It raises `TypeError`, `ValueError`, `ArithmeticError` or `KeyError` for a value that does not
    fit.
    """
    admit = info.spec.value.admit
    plain = null_stays(plain_value_of(info.spec.value.description))

    def value(one: Any) -> Any:
        return admit(plain(one))

    return {Shape.POINT: _point, Shape.LIST: _list, Shape.MAP: _map}[info.shape](info, value)


def _point(info: StateInfo, value: Callable[[Any], Any]) -> Content:
    if not info.has_ttl:
        return lambda one, _, __: value(one)
    return lambda one, written, now_us: (_us(written, now_us), value(one))


def _list(info: StateInfo, value: Callable[[Any], Any]) -> Content:
    def content(elements: Any, written: Any, now_us: int) -> list[Any]:
        values = [*map(value, _collection(elements))]
        if not info.has_ttl:
            return values
        times = [None] * len(values) if written is None else written
        return [(_us(at, now_us), one) for at, one in zip(times, values, strict=True)]

    return content


def _map(info: StateInfo, value: Callable[[Any], Any]) -> Content:
    codec = info.spec.user_key
    assert codec is not None
    plain_key = null_stays(plain_value_of(codec.description))

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
