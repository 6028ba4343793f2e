"""Assign the clean-ups of a state with TTL, and run incremental sweeps after accesses."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

from forebay_engine.states.public_methods import overridden
from forebay_state_api.contract.backend import Capability, Table, TableSpec
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.ttl import (
    Cleanup,
    CleanupFullSnapshot,
    CleanupInBackground,
    CleanupInCompaction,
    CleanupIncrementally,
)

if TYPE_CHECKING:
    from forebay_engine.execution.engine_interface import StateHost
    from forebay_engine.states.base import BoundTable, KeyedState
    from forebay_state_api.contract.backend import StateBackend
    from forebay_state_api.contract.expiry import Expiry
    from forebay_state_api.job.descriptors import StateDescriptor

_log = logging.getLogger(__name__)

_NEEDS: Final[dict[type, Capability]] = {
    CleanupFullSnapshot: Capability.CLEANUP_FULL_SNAPSHOT,
    CleanupIncrementally: Capability.CLEANUP_INCREMENTALLY,
    CleanupInCompaction: Capability.CLEANUP_IN_COMPACTION,
}

C = TypeVar("C")


def needed_by(cleanup: Cleanup) -> Capability:
    """Return the capability that a backend must claim for a clean-up."""
    return _NEEDS.get(type(cleanup), Capability.NONE)


@attrs.frozen
class Cleanups:
    """The clean-ups that a descriptor requires of one backend."""

    expiry: Expiry | None
    """The expiry rule; ``None`` if the state has no TTL."""
    asked: tuple[Cleanup, ...] = ()
    """The clean-ups that the descriptor names."""
    background: Cleanup | None = None
    """The backend's own clean-up, unless the descriptor names its kind."""

    @classmethod
    def of(cls, descriptor: StateDescriptor, backend: type[StateBackend]) -> Cleanups:
        """Refuse, before the first record, a clean-up that the backend does not support."""
        ttl = descriptor.ttl
        if ttl is None:
            return cls(None)
        for one in ttl.cleanup:
            if needed_by(one) not in backend.capabilities:
                raise ConfigurationError(
                    f"state {descriptor.name!r}: backend {backend.name!r} does not support "
                    f"{one!r}; "
                    "choose CleanupOnRead(), CleanupInBackground(), cleanup=() or another backend"
                )
        own = backend.background_cleanup
        wanted = any(isinstance(one, CleanupInBackground) for one in ttl.cleanup)
        if not wanted or any(type(one) is type(own) for one in ttl.cleanup):
            own = None
        return cls(ttl.expiry, tuple(ttl.cleanup), own)

    def added_to(self, spec: TableSpec) -> TableSpec:
        """Return ``spec`` with the clean-up rules for the table."""
        compaction = self._one(CleanupInCompaction, (*self.asked, self.background))
        snapshot = self._one(CleanupFullSnapshot, self.asked)
        return attrs.evolve(
            spec,
            compaction_expiry=None if compaction is None else self.expiry,
            compaction_clock_every=None if compaction is None else compaction.clock_every,
            snapshot_expiry=None if snapshot is None else self.expiry,
        )

    def sweep(self, state: str, uid: str) -> IncrementalSweep | None:
        """Return the incremental clean-up, if there is one."""
        asked = self._one(CleanupIncrementally, self.asked)
        own = self._one(CleanupIncrementally, (self.background,))
        if self.expiry is None or (asked is None and own is None):
            return None
        per_access = 0 if asked is None else asked.entries
        per_record = own.entries if own is not None else 0
        if asked is not None and asked.every_record:
            per_record = asked.entries
        return IncrementalSweep(state, uid, self.expiry, per_access, per_record)

    @staticmethod
    def _one(kind: type[C], among: tuple[Any, ...]) -> C | None:
        return next((one for one in among if isinstance(one, kind)), None)


@attrs.frozen
class IncrementalSweep:
    """Checks cells of one state at the end of a micro-batch."""

    state: str
    uid: str
    expiry: Expiry
    per_access: int
    per_record: int

    def run(self, table: Table, records: int, accesses: int, now_us: int) -> int:
        """Make the checks due after these records and accesses; return how many parts went."""
        checks = self.per_access * accesses + self.per_record * records
        dropped = table.sweep(checks, self.expiry.until_us(now_us)) if checks else 0
        if dropped:
            _log.debug(
                "ttl: swept %d expired parts of state %r, operator %r",
                dropped,
                self.state,
                self.uid,
            )
        return dropped


def counting(state: type[KeyedState]) -> type[KeyedState]:
    """Return a subclass of ``state`` that counts accesses: calls of its public methods."""
    if state not in _counting:
        _counting[state] = _counting_class(state)
    return _counting[state]


_counting: Final[dict[type[KeyedState], type[KeyedState]]] = {}


def _counting_class(state: type[KeyedState]) -> type[KeyedState]:
    def begin(self: Any, host: StateHost, bound: BoundTable) -> None:
        state.__init__(self, host, bound)
        self.accesses = 0

    members = {"__slots__": ("accesses",), "__init__": begin, **overridden(state, _counted)}
    return type(f"Counting{state.__name__}", (state,), members)


def _counted(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        # Nested calls are part of the same access.
        before = self.accesses
        try:
            return method(self, *arguments, **named)
        finally:
            self.accesses = before + 1

    return call
