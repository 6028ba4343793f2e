"""Check whether a function can continue from stored state.

The check does what the first task of a restart does, for all key groups at once: it opens the
version with the backend that made it and lets the function declare its states. So it finds
everything that a restart would find, also in old files, and on the heap backend in every value.
Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import attrs

from forebay_engine.codecs.field_changes import FieldChange, field_changes
from forebay_engine.execution.declared_state import TtlSwitchedError
from forebay_engine.execution.engine import Engine
from forebay_engine.execution.identity import SubtaskIdentity
from forebay_engine.operator_state.subtask_state import OperatorState
from forebay_engine.versions.format.epochs import RunIdentity
from forebay_engine.versions.format.key_types import key_type_of
from forebay_engine.versions.format.manifest import lineages_of
from forebay_engine.versions.format.operator_state_entries import OperatorStateContent
from forebay_engine.versions.format.timer_tables import TIMER_TABLES
from forebay_state_api.codecs import codec_for, raw_codec
from forebay_state_api.contract.backend import StateBackend
from forebay_state_api.contract.migration import described
from forebay_state_api.errors import StateMigrationError
from forebay_state_api.job.context import RuntimeContext

if TYPE_CHECKING:
    from forebay_engine.operator_state.typed import Declared
    from forebay_engine.versions.choosing.reader import VersionReader
    from forebay_engine.versions.format.manifest import Manifest
    from forebay_engine.versions.operator import TaskVersion
    from forebay_state_api.job.descriptors import StateDescriptor

COMPATIBLE: Final = "compatible"
NEW: Final = "new"
KEPT: Final = "not declared: kept, unread"


@attrs.frozen
class FunctionCheck:
    """The result of checking a function against a version."""

    verdicts: Mapping[str, str]
    """State → `COMPATIBLE`, `NEW`, `KEPT`, or why the function cannot continue from it."""
    changes: Mapping[str, Sequence[FieldChange]]
    """State → the fields and members that its stored values lose, gain or rename, if any."""

    @property
    def drops(self) -> bool:
        """Whether stored values lose a field or a member."""
        return any(one.loses for those in self.changes.values() for one in those)


def check_function(
    function: Any,
    reader: VersionReader,
    backend_class: type[StateBackend],
    options: Mapping[str, Any],
) -> FunctionCheck:
    """Check whether a function can continue from a version, and what its values would lose.

    ``reader`` holds the whole version, ``options`` are the settings of its backend. Raises
    `FunctionError` if the function fails for another reason.
    """
    stored = _states_of(reader.manifests)
    opening = reader.opening(options)
    backend = backend_class.open(opening)
    nothing = backend_class.open(attrs.evolve(opening, version=0, parents=()))
    engine = _CheckingEngine(function, backend, nothing, reader)
    verdicts = dict.fromkeys(stored, KEPT)
    try:
        engine.open()
    except StateMigrationError as error:
        verdicts["operator state"] = str(error)
    finally:
        engine.close(failed=True)
        backend.close()
        nothing.close()
    for name in [*engine.states, *engine.declared_operator_states]:
        verdicts[name] = COMPATIBLE if name in stored else NEW
    changes = _changes(engine, reader.manifests)
    return FunctionCheck(verdicts | engine.faults, changes)


def _states_of(manifests: Sequence[Manifest]) -> set[str]:
    """Return the names of all states of a version."""
    names = {name for one in manifests for name in one.descriptions if name not in TIMER_TABLES}
    contents = (OperatorStateContent.loaded(one.operator_state) for one in manifests)
    return names.union(*(content.states for content in contents))


def _changes(
    engine: _CheckingEngine, manifests: Sequence[Manifest]
) -> dict[str, list[FieldChange]]:
    """Return the changes of fields, by state; none of a state that the function cannot read."""
    found: dict[str, list[FieldChange]] = {}
    for name, lineage in lineages_of(manifests).items():
        if name in engine.states and name not in engine.faults:
            declared = engine.states[name].spec.generations[-1]
            stored = described(lineage.generations[-1])
            found[name] = _of_parts(
                (stored[part], declared[part]) for part in ("user_key", "value")
            )
    for manifest in manifests:
        content = OperatorStateContent.loaded(manifest.operator_state)
        for name, state in content.states.items():
            if (one := engine.declared_operator_states.get(name)) is not None:
                key = None if one.key is None else one.key.declaration
                parts = (state.type.key, key), (state.type.value, one.value.declaration)
                found[name] = _of_parts(parts)
    return {name: changes for name, changes in found.items() if changes}


def _of_parts(parts: Iterable[tuple[Any, Any]]) -> list[FieldChange]:
    """Return the changes from stored to declared parts; none for keys that are absent."""
    return [
        change
        for stored, declared in parts
        if stored and declared
        for change in field_changes(stored, declared)
    ]


class _CheckingEngine(Engine):
    """An engine that continues after an incompatible state, as if it were not stored."""

    def __init__(
        self,
        function: Any,
        backend: StateBackend,
        nothing: StateBackend,
        reader: VersionReader,
    ) -> None:
        made = reader.manifests[0].made
        uid = reader.manifests[0].uid
        task = SubtaskIdentity(
            uid=uid,
            run=RunIdentity(keyed_uuid="", app_id=None, run_id=None),
            batch_id=reader.version,
            subtask=0,
            parallelism=1,
            max_parallelism=made.max_parallelism,
            attempt_id=0,
        )
        context = RuntimeContext(
            operator_uid=uid,
            subtask_index=0,
            parallelism=1,
            max_parallelism=made.max_parallelism,
            attempt_number=0,
            batch_id=reader.version,
        )
        key = key_type_of(reader.manifests)
        super().__init__(
            function,
            backend,
            context,
            key_codec=codec_for(None, what="the key")
            if key is None
            else raw_codec(key.description),
            now_us=reader.manifests[0].now_us,
            lineages=lineages_of(reader.manifests),
            operator_state=OperatorState(function, task, cast("TaskVersion", _Opened(reader))),
        )
        self.faults: dict[str, str] = {}
        self._nothing = nothing

    @property
    def declared_operator_states(self) -> Mapping[str, Declared]:
        """Return the declared states that belong to no key, by name."""
        return {} if self.operator_state is None else self.operator_state.store.declared

    def _declare(self, descriptor: StateDescriptor) -> Any:
        try:
            return super()._declare(descriptor)
        except TtlSwitchedError:
            pass  # a restart rewrites the state
        except StateMigrationError as error:
            self.faults[descriptor.name] = str(error)
        host = self._host
        self._host = attrs.evolve(host, backend=self._nothing, lineages={})
        try:
            return super()._declare(descriptor)
        finally:
            self._host = host


class _Opened:
    """An opened version, with the interface that `OperatorState` expects of a task's version."""

    is_restored = True

    def __init__(self, reader: VersionReader) -> None:
        self.clipped_manifests = reader.clipped
        self.storage = reader.storage
        # No notification of a committed version: only a restart sends it.
        self.opened_version = 0
        self.version = reader.version + 1
        self._manifests = sorted(reader.manifests, key=lambda manifest: manifest.made.subtask)

    def every_manifest(self) -> Sequence[Manifest]:
        return self._manifests
