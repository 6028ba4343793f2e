"""The state objects of operator state: in memory, changed directly, stored by the snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from forebay_engine.states.elements import checked_elements
from forebay_state_api.errors import StateAccessError
from forebay_state_api.job.futures import StateFuture, completed_future, completed_void_future
from forebay_state_api.job.iterators import StateIterator
from forebay_state_api.job.states import ListState, MapState

if TYPE_CHECKING:
    from forebay_engine.operator_state.typed import Declared
    from forebay_state_api.job.iterators import Cursor


class OperatorListState(ListState[Any]):
    """A list of one subtask; for a union state also the elements of the other subtasks."""

    __slots__ = ("_declared", "_lists", "is_changed")

    def __init__(
        self, declared: Declared, own: list[Any], visible: list[Any] | None = None
    ) -> None:
        """``own`` is this subtask's part; ``visible`` is all that it sees, if that is more."""
        self._declared = declared
        self._lists = (own,) if visible is None else (own, visible)
        self.is_changed = False

    @property
    def own(self) -> list[Any]:
        """The part that the snapshot stores."""
        return self._lists[0]

    def get(self) -> list[Any]:
        hand_out = self._declared.value.hand_out
        visible = self._lists[-1]
        return visible.copy() if hand_out is None else [hand_out(one) for one in visible]

    def add(self, value: Any) -> None:
        if value is None:
            raise self._refused("add(None)")
        self._append([self._declared.value.admit(value)])

    def add_all(self, values: Iterable[Any]) -> None:
        self._append(self._admitted("add_all", values))

    def update(self, values: Iterable[Any]) -> None:
        admitted = self._admitted("update", values)
        self.clear()
        self._append(admitted)

    def clear(self) -> None:
        self.is_changed = True
        for elements in self._lists:
            elements.clear()

    def merge_namespaces(self, target: object, sources: Iterable[object]) -> None:
        raise StateAccessError(
            f"{self._declared.what} has no namespaces: {target!r}, {list(sources)!r}"
        )

    def async_merge_namespaces(
        self, target: object, sources: Iterable[object]
    ) -> StateFuture[None]:
        self.merge_namespaces(target, sources)
        return completed_void_future()

    def async_get(self) -> StateFuture[StateIterator[Any]]:
        return _iterator(self.get())

    def async_add(self, value: Any) -> StateFuture[None]:
        self.add(value)
        return completed_void_future()

    def async_add_all(self, values: Iterable[Any]) -> StateFuture[None]:
        self.add_all(values)
        return completed_void_future()

    def async_update(self, values: Iterable[Any]) -> StateFuture[None]:
        self.update(values)
        return completed_void_future()

    def async_clear(self) -> StateFuture[None]:
        self.clear()
        return completed_void_future()

    def _append(self, admitted: list[Any]) -> None:
        self.is_changed = self.is_changed or bool(admitted)
        for elements in self._lists:
            elements.extend(admitted)

    def _admitted(self, method: str, values: Iterable[Any]) -> list[Any]:
        elements = checked_elements(method, values, self._refused)
        return [self._declared.value.admit(element) for element in elements]

    def _refused(self, call: str) -> ValueError:
        return ValueError(f"{self._declared.what}: {call} is refused; nothing was changed")


class OperatorMapState(MapState[Any, Any]):
    """The map of a broadcast state: address of the user key → (user key, value)."""

    __slots__ = (
        "_address",
        "_declared",
        "_entries",
        "_key",
        "_value",
        "check_write",
        "is_changed",
    )

    def __init__(self, declared: Declared, entries: Iterable[tuple[Any, Any]]) -> None:
        assert declared.key is not None
        self._declared = declared
        self._key = declared.key
        self._value = declared.value
        self._address = declared.key.address or (lambda key: key)
        self._entries = {self._address(key): (key, value) for key, value in entries}
        self.is_changed = False
        self.check_write: Callable[[str], None] = _any_write
        """Called with the state's name before each write; raises an error to refuse it."""

    @property
    def own(self) -> list[tuple[Any, Any]]:
        """The part that the snapshot stores."""
        return list(self._entries.values())

    def get(self, key: Any) -> Any:
        entry = self._entries.get(self._found(key))
        return None if entry is None else _handed(self._value.hand_out, entry[1])

    def put(self, key: Any, value: Any) -> None:
        self._put([(key, value)])

    def put_all(self, entries: Mapping[Any, Any]) -> None:
        if entries is None:
            raise self._refused("put_all(None)")
        self._put(entries.items())

    def remove(self, key: Any) -> None:
        self.check_write(self._declared.what)
        if self._entries.pop(self._found(key), None) is not None:
            self.is_changed = True

    def contains(self, key: Any) -> bool:
        return self._found(key) in self._entries

    def items(self) -> list[tuple[Any, Any]]:
        return list(zip(self.keys(), self.values(), strict=True))

    def keys(self) -> list[Any]:
        return [_handed(self._key.hand_out, key) for key, _ in self._entries.values()]

    def values(self) -> list[Any]:
        return [_handed(self._value.hand_out, value) for _, value in self._entries.values()]

    def is_empty(self) -> bool:
        return not self._entries

    def clear(self) -> None:
        self.check_write(self._declared.what)
        self.is_changed = True
        self._entries.clear()

    def async_get(self, key: Any) -> StateFuture[Any]:
        return completed_future(self.get(key))

    def async_put(self, key: Any, value: Any) -> StateFuture[None]:
        self.put(key, value)
        return completed_void_future()

    def async_put_all(self, entries: Mapping[Any, Any]) -> StateFuture[None]:
        self.put_all(entries)
        return completed_void_future()

    def async_remove(self, key: Any) -> StateFuture[None]:
        self.remove(key)
        return completed_void_future()

    def async_contains(self, key: Any) -> StateFuture[bool]:
        return completed_future(self.contains(key))

    def async_items(self) -> StateFuture[StateIterator[tuple[Any, Any]]]:
        return _iterator(self.items())

    def async_keys(self) -> StateFuture[StateIterator[Any]]:
        return _iterator(self.keys())

    def async_values(self) -> StateFuture[StateIterator[Any]]:
        return _iterator(self.values())

    def async_is_empty(self) -> StateFuture[bool]:
        return completed_future(self.is_empty())

    def async_clear(self) -> StateFuture[None]:
        self.clear()
        return completed_void_future()

    def _put(self, entries: Iterable[tuple[Any, Any]]) -> None:
        self.check_write(self._declared.what)
        admitted = {}
        for key, value in entries:
            kept = self._admitted_key(key)
            admitted[self._address(kept)] = (kept, self._value.admit(value))
        self.is_changed = self.is_changed or bool(admitted)
        self._entries.update(admitted)

    def _found(self, key: Any) -> Any:
        return self._address(self._admitted_key(key))

    def _admitted_key(self, key: Any) -> Any:
        if key is None:
            raise self._refused("a None as user key")
        return self._key.admit(key)

    def _refused(self, call: str) -> ValueError:
        return ValueError(f"{self._declared.what}: {call} is refused; nothing was changed")


def _any_write(what: str) -> None:
    """Allow a write of the state ``what``."""


def _handed(hand_out: Any, value: Any) -> Any:
    return value if hand_out is None else hand_out(value)


class _OnePage:
    """A page source that is never used, because everything is in the first page."""

    def after_first_page(self) -> Cursor:
        raise NotImplementedError


def _iterator(elements: list[Any]) -> StateFuture[StateIterator[Any]]:
    return completed_future(StateIterator(_OnePage(), elements, first_is_last=True))
