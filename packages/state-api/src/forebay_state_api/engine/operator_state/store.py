"""`OperatorStateStore` over what was restored."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from forebay_state_api.engine.descriptor_equality import disagreement
from forebay_state_api.engine.operator_state.states import OperatorListState, OperatorMapState
from forebay_state_api.engine.operator_state.typed import Declared, check_class, declared
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.operator_state import OperatorStateStore
from forebay_state_api.versions.operator_state import Mode, StateContent, packed

if TYPE_CHECKING:
    from forebay_state_api.engine.operator_state.restored import Restored
    from forebay_state_api.versions.blobs import Blob

Put = Callable[[bytes], "Blob"]
"""Makes bytes durable."""


class Store(OperatorStateStore):
    """The declared states of one subtask, and those that are stored and not declared."""

    def __init__(self, restored: Restored, uid: str) -> None:
        self._restored = restored
        self._uid = uid
        self._states: dict[str, tuple[Declared, Any]] = {}
        self.is_open = False
        """Whether states may be declared."""

    def get_list_state(self, descriptor: Any) -> Any:
        return self._state(descriptor, Mode.SPLIT)

    def get_union_list_state(self, descriptor: Any) -> Any:
        return self._state(descriptor, Mode.UNION)

    def get_broadcast_state(self, descriptor: Any) -> Any:
        return self._state(descriptor, Mode.BROADCAST)

    @property
    def undeclared(self) -> list[str]:
        """Stored states that nobody asked for."""
        return sorted(self._restored.names() - self._states.keys())

    @property
    def declared(self) -> list[str]:
        """The states that were asked for."""
        return sorted(self._states)

    def contents(self, put: Put) -> dict[str, StateContent]:
        """All states as the version is to hold them; ``put`` stores what changed."""
        kept = {name: self._kept(name, put) for name in self.undeclared}
        return kept | {
            name: self._content(told, state, put) for name, (told, state) in self._states.items()
        }

    def _state(self, descriptor: Any, mode: Mode) -> Any:
        check_class(descriptor, mode)
        known = self._states.get(descriptor.name)
        if known is not None:
            self._check_same(known[0], descriptor, mode)
            return known[1]
        told = declared(descriptor, mode, self._uid)
        if not self.is_open:
            raise ConfigurationError(
                f"declare {told.what} in initialize_state(), before the first record"
            )
        state = self._made(told)
        self._states[told.name] = told, state
        return state

    def _check_same(self, known: Declared, descriptor: Any, mode: Mode) -> None:
        if known.mode is not mode:
            raise ConfigurationError(
                f"{known.what} is asked for by {known.mode.method} and by {mode.method}; give one "
                "of the states another name"
            )
        if wherein := disagreement(known.descriptor, descriptor):
            raise ConfigurationError(
                f"{known.what}: two descriptors disagree under one name, in {wherein}; declare it "
                "once, or give one of the states another name"
            )

    def _made(self, told: Declared) -> OperatorListState | OperatorMapState:
        restored = self._restored
        stored = restored.exists and restored.type_of(told.name) is not None
        share = restored.share(told.name, told.mode) if stored else []
        own = [value for part in share for value in told.unpack(part)]
        if told.mode is Mode.BROADCAST:
            return OperatorMapState(told, own)
        if told.mode is Mode.SPLIT:
            return OperatorListState(told, own)
        parts = restored.everything(told.name)
        return OperatorListState(told, own, [v for part in parts for v in told.unpack(part)])

    def _content(self, told: Declared, state: Any, put: Put) -> StateContent:
        before = self._restored.mine.states.get(told.name)
        if not state.is_changed and before is not None and before.type == told.type:
            return before
        return StateContent(told.type, put(packed(told.pack(state.own))))

    def _kept(self, name: str, put: Put) -> StateContent:
        before = self._restored.mine.states.get(name)
        if before is not None:
            return before
        part = self._restored.kept(name)
        return StateContent(part.type, put(packed(list(part.elements))))
