"""`OperatorStateStore` over the restored state."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from forebay_engine.execution.descriptor_equality import disagreement
from forebay_engine.operator_state.states import OperatorListState, OperatorMapState
from forebay_engine.operator_state.typed import Declared, check_class, declared
from forebay_engine.versions.format.operator_state_entries import Mode, StateContent, packed
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.operator_state import OperatorStateStore

if TYPE_CHECKING:
    from forebay_engine.operator_state.restored import Restored
    from forebay_engine.versions.format.blobs import Blob

Put = Callable[[bytes], "Blob"]
"""Makes bytes durable."""


class Store(OperatorStateStore):
    """The declared states of one subtask, and the stored states that are not declared."""

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
        """Return stored states that were not declared."""
        return sorted(self._restored.names() - self._states.keys())

    @property
    def declared(self) -> dict[str, Declared]:
        """Return the declared states, by name."""
        return {name: declaration for name, (declaration, _) in sorted(self._states.items())}

    def contents(self, put: Put) -> dict[str, StateContent]:
        """Return all states for the version; ``put`` stores changed ones."""
        kept = {name: self._kept(name, put) for name in self.undeclared}
        return kept | {
            name: self._content(declaration, state, put)
            for name, (declaration, state) in self._states.items()
        }

    def _state(self, descriptor: Any, mode: Mode) -> Any:
        check_class(descriptor, mode)
        known = self._states.get(descriptor.name)
        if known is not None:
            self._check_same(known[0], descriptor, mode)
            return known[1]
        declaration = declared(descriptor, mode, self._uid)
        if not self.is_open:
            raise ConfigurationError(
                f"declare {declaration.what} in initialize_state() or open(), before the first "
                "record"
            )
        state = self._made(declaration)
        self._states[declaration.name] = declaration, state
        return state

    def _check_same(self, known: Declared, descriptor: Any, mode: Mode) -> None:
        if known.mode is not mode:
            raise ConfigurationError(
                f"{known.what} is declared by {known.mode.method} and by {mode.method}; give one "
                "of the states another name"
            )
        if wherein := disagreement(known.descriptor, descriptor):
            raise ConfigurationError(
                f"{known.what}: two descriptors disagree under one name, in {wherein}; declare it "
                "once, or give one of the states another name"
            )

    def _made(self, declaration: Declared) -> OperatorListState | OperatorMapState:
        restored = self._restored
        stored = restored.exists and restored.type_of(declaration.name) is not None
        share = restored.share(declaration.name, declaration.mode) if stored else []
        own = [value for part in share for value in declaration.unpack(part)]
        if declaration.mode is Mode.BROADCAST:
            return OperatorMapState(declaration, own)
        if declaration.mode is Mode.SPLIT:
            return OperatorListState(declaration, own)
        parts = restored.everything(declaration.name)
        return OperatorListState(
            declaration, own, [v for part in parts for v in declaration.unpack(part)]
        )

    def _content(self, declaration: Declared, state: Any, put: Put) -> StateContent:
        before = self._restored.mine.states.get(declaration.name)
        if not state.is_changed and before is not None and before.type == declaration.type:
            return before
        return StateContent(declaration.type, put(packed(declaration.pack(state.own))))

    def _kept(self, name: str, put: Put) -> StateContent:
        before = self._restored.mine.states.get(name)
        if before is not None:
            return before
        part = self._restored.kept(name)
        return StateContent(part.type, put(packed(list(part.elements))))
