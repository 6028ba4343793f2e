"""The keyed states that a function declares, as plain data: what rows from elsewhere must fit."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import attrs

from forebay_engine.execution.engine import Engine
from forebay_engine.execution.identity import SubtaskIdentity
from forebay_engine.operator_state.subtask_state import OperatorState
from forebay_engine.stored.restore import default_options
from forebay_engine.versions.format.epochs import RunIdentity
from forebay_engine.versions.format.key_types import KeyType, key_type_of
from forebay_engine.versions.format.manifest import lineages_of
from forebay_state_api.contract.backend import Opening
from forebay_state_api.contract.migration import Lineage
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.context import RuntimeContext
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.storage.obstore import MemoryStorage
from forebay_state_processor.reading.stored_states import (
    StateInfo,
    state_of,
    timer_spec,
)

if TYPE_CHECKING:
    from forebay_state_api.codecs import ValueCodec
    from forebay_state_api.contract.backend import StateBackend
    from forebay_state_processor.reading.snapshot import Snapshot


@attrs.frozen(kw_only=True)
class DeclaredStates:
    """The types of keys and states; plain data, which other processes can receive."""

    uid: str
    key: KeyType
    lineages: Mapping[str, Lineage]
    """State → its declaration."""
    ttl_us: Mapping[str, int]
    """State with a TTL → its time to live in µs."""
    has_timers: bool
    """Whether the function has timers."""

    @classmethod
    def of(cls, function: Any, *, key: KeyType, uid: str, backend: type[StateBackend]) -> Self:
        """Return what ``function`` declares when it opens without stored state.

        ``key`` is the type of keys. A copy of the function should be passed: its ``open`` is
        called, and its ``close``. Raises `FunctionError` if one of them fails.
        """
        engine = _opened(function, key.codec(), uid, backend)
        specs = [state.spec for state in engine.states.values()]
        ttls = {one.spec.name: one.descriptor.ttl for one in engine.states.values()}
        return cls(
            uid=uid,
            key=key,
            lineages={one.name: Lineage(one.description(), one.generations) for one in specs},
            ttl_us={name: ttl.ttl_us for name, ttl in ttls.items() if ttl is not None},
            has_timers=engine.timers is not None,
        )

    @classmethod
    def of_snapshot(cls, snapshot: Snapshot) -> Self:
        """Return what was declared when a stored version was made.

        Raises `ConfigurationError` if it has no keyed state.
        """
        key = key_type_of(snapshot.manifests)
        if key is None:
            raise ConfigurationError(
                f"version {snapshot.version} of operator {snapshot.uid!r} has no keyed state"
            )
        lineages = lineages_of(snapshot.manifests)
        ttls = {name: info.ttl_us for name, info in snapshot.states.items()}
        return cls(
            uid=snapshot.uid,
            key=key,
            lineages={name: lineages[name] for name in snapshot.states},
            ttl_us={name: us for name, us in ttls.items() if us is not None},
            has_timers=timer_spec(snapshot.manifests) is not None,
        )

    def infos(self) -> dict[str, StateInfo]:
        """Return the states by name, with codecs of plain values."""
        return {name: state_of(one, self.ttl_us.get(name)) for name, one in self.lineages.items()}

    def key_codec(self) -> ValueCodec:
        """Return the codec of keys."""
        return self.key.codec(f"a key of operator {self.uid!r}")


def _opened(function: Any, key: ValueCodec, uid: str, backend: type[StateBackend]) -> Engine:
    """Let a function declare its states over an empty backend; both are closed again."""
    task = _only_subtask(uid)
    storage = MemoryStorage(f"memory://{uuid.uuid4()}")
    opening = Opening.outside_job(storage, uid, KeyGroupRange(0, 0), default_options(backend))
    opened = backend.open(opening)
    context = RuntimeContext(
        operator_uid=uid,
        subtask_index=task.subtask,
        parallelism=task.parallelism,
        max_parallelism=task.max_parallelism,
        attempt_number=task.attempt_id,
        batch_id=task.batch_id,
    )
    operator_state = OperatorState(function, task, None)
    engine = Engine(
        function, opened, context, key_codec=key, now_us=0, operator_state=operator_state
    )
    try:
        engine.open()
    finally:
        engine.close(failed=True)
        opened.close()
    return engine


def _only_subtask(uid: str) -> SubtaskIdentity:
    return SubtaskIdentity(
        uid=uid,
        run=RunIdentity(keyed_uuid="", app_id=None, run_id=None),
        batch_id=0,
        subtask=0,
        parallelism=1,
        max_parallelism=1,
        attempt_id=0,
    )
