"""State that a test sets, until the next micro-batch of the harness writes it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import attrs

from forebay_engine.versions.format.namespaces import canonical_namespace
from forebay_state_api.contract.changes import ABSENT
from forebay_state_api.errors import ConfigurationError

if TYPE_CHECKING:
    from forebay_engine.execution.subtask import Subtask
    from forebay_state_api.job.descriptors import StateDescriptor


@attrs.frozen
class _Write:
    """One content to write under one key."""

    descriptor: StateDescriptor
    key: Any
    group: int
    namespace: Any
    content: Any


@attrs.define
class PendingWrites:
    """Contents by state, key and namespace; the last one of each counts.

    ``ABSENT`` is the content of a state that is deleted.
    """

    _writes: dict[tuple[str, Any, Any], _Write] = attrs.field(factory=dict, init=False)

    def put(
        self, descriptor: StateDescriptor, key: Any, group: int, namespace: Any, content: Any
    ) -> None:
        """Note a write; raise `ConfigurationError` for a content that no such state can have."""
        if content is not ABSENT and not isinstance(content, _TYPES.get(descriptor.kind, object)):
            raise ConfigurationError(
                f"state {descriptor.name!r}: a {descriptor.kind} state is set to a "
                f"{_TYPES[descriptor.kind].__name__}, not to {content!r:.300}"
            )
        if content is not ABSENT and descriptor.kind not in _SETTERS:
            raise ConfigurationError(
                f"state {descriptor.name!r}: the content of {descriptor.kind} state cannot be set; "
                "process rows that write it"
            )
        where = canonical_namespace(namespace)
        kept = content if content is ABSENT else copy.deepcopy(content)
        write = _Write(descriptor, key, group, where, kept)
        self._writes[descriptor.name, key, where] = write

    def content(self, descriptor: StateDescriptor, key: Any, namespace: Any, stored: Any) -> Any:
        """Return what a read sees: the pending content, or else ``stored()``."""
        write = self._writes.get((descriptor.name, key, canonical_namespace(namespace)))
        if write is None:
            return stored()
        return _empty(descriptor) if write.content is ABSENT else copy.deepcopy(write.content)

    def begin(self, running: Subtask) -> None:
        """Write into the states of a subtask that has begun."""
        for write in self._writes.values():
            if write.group in running.task.range:
                _write(running, write)
        if self._writes and running.engine.by_columns:
            running.engine.hand_over()  # columns are read from the tables

    def clear(self) -> None:
        """Forget the writes, after they are committed or discarded."""
        self._writes.clear()


def _write(running: Subtask, write: _Write) -> None:
    engine, name = running.engine, write.descriptor.name
    declared = engine.states.get(name)
    if declared is None or declared.descriptor.kind != write.descriptor.kind:
        raise ConfigurationError(
            f"operator {running.task.uid!r}: the test set the {write.descriptor.kind} state "
            f"{name!r}, which the function does not declare"
        )
    state: Any = declared.state
    with engine.at_key(write.key, write.group):
        state.bind(write.namespace)
        try:
            state.clear()
            if write.content is not ABSENT:
                _SETTERS[write.descriptor.kind](state, write.content)
        finally:
            state.bind(None)


_SETTERS: Final[dict[str, Callable[[Any, Any], None]]] = {
    "value": lambda state, content: state.update(content),
    "list": lambda state, content: state.update([*content]),
    "map": lambda state, content: state.put_all(content),
    "sorted_map": lambda state, content: state.put_all(content),
    "reducing": lambda state, content: state.add(content),
}
_TYPES: Final[dict[str, type]] = {"list": list, "map": dict, "sorted_map": dict}


def _empty(descriptor: StateDescriptor) -> Any:
    """Return what a read of unset state returns."""
    if (made := _TYPES.get(descriptor.kind)) is not None:
        return made()
    default = getattr(descriptor, "default", None)
    return copy.deepcopy(default) if descriptor.ttl is None else None
