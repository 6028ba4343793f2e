"""The states that the function of one subtask has declared."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from forebay_engine.execution.declared_state import (
    DeclaredState,
    TtlSwitchedError,
    declare,
    read_ahead,
)
from forebay_engine.execution.descriptor_equality import disagreement
from forebay_engine.versions.format.timer_tables import TIMER_TABLES
from forebay_state_api.errors import ConfigurationError

if TYPE_CHECKING:
    from forebay_engine.execution.engine_interface import StateHost
    from forebay_engine.execution.read_requests import ReadRequests
    from forebay_state_api.job.context import RuntimeContext
    from forebay_state_api.job.descriptors import StateDescriptor
    from forebay_state_api.settings import EngineSettings


class SubtaskStates(dict[str, DeclaredState]):
    """The declared states by name, the engine's own included."""

    def __init__(self, context: RuntimeContext) -> None:
        super().__init__()
        self._context = context
        self.is_open = False
        """Whether the function may declare states: before its first record."""
        self.ttl_switched = False
        """Whether a declaration failed with a `TtlSwitchedError`."""

    def declared(self, host: StateHost, descriptor: StateDescriptor) -> Any:
        """Return the state object of a descriptor; declare it if that has not been done.

        Raises `ConfigurationError` for another descriptor of a known name.
        """
        if descriptor.name in TIMER_TABLES:
            raise ConfigurationError(
                f"a state cannot be called {descriptor.name!r}: timers are stored under that name"
            )
        known = self.get(descriptor.name)
        if known is not None:
            self._check_same(known.descriptor, descriptor)
            return known.state
        if not self.is_open:
            raise ConfigurationError(
                f"declare state {descriptor.name!r} in open() or initialize_state(), before the "
                "first record"
            )
        try:
            self[descriptor.name] = declared = declare(host, descriptor)
        except TtlSwitchedError:
            self.ttl_switched = True
            raise
        return declared.state

    def declare_own(self, host: StateHost, descriptor: StateDescriptor) -> Any:
        """Declare a state of the engine's own, at any time; return its object."""
        self[descriptor.name] = declared = declare(host, descriptor)
        declared.state.bind(self._context._namespace)
        return declared.state

    def _check_same(self, known: StateDescriptor, descriptor: StateDescriptor) -> None:
        if known is descriptor or (wherein := disagreement(known, descriptor)) is None:
            return
        raise ConfigurationError(
            f"operator {self._context.operator_uid!r}: two descriptors disagree under the name "
            f"{descriptor.name!r}, in {wherein}; declare it once, or give one of the states "
            "another name"
        )

    def bind(self, namespace: Any) -> None:
        """Make a namespace current."""
        self._context._namespace = namespace
        for state in self.values():
            state.state.bind(namespace)

    def forget_requests(self, key: Any) -> None:
        """Forget the requests of a key's record, which has failed."""
        for state in self.values():
            state.state.forget_requests(key)

    def read_ahead(
        self,
        keys: Sequence[Any],
        groups: Sequence[int],
        settings: EngineSettings,
        requests: ReadRequests,
    ) -> int:
        """Fetch the point states of all keys in a few batched reads; return how many cells."""
        states = [state for state in self.values() if state.reads_ahead]
        wanted = dict(zip(keys, groups, strict=True))
        return read_ahead(states, wanted, settings.batch_size, requests)

    def cells_held(self) -> int:
        """Return the number of cells in memory that are not the backend's."""
        return sum(state.cells_held() for state in self.values())

    def hand_over(self, open_keys: Collection[Any]) -> int:
        """Pass the writes to the backend; return the most keys that one state has touched."""
        return max([state.hand_over(open_keys) for state in self.values()], default=0)

    def clean_up(self, records: int, now_us: int) -> int:
        """Let the tables remove expired data; return the number of values."""
        return sum(state.clean_up(records, now_us) for state in self.values())
