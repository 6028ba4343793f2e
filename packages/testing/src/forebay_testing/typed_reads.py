"""Read committed state from outside a micro-batch, as values of the job's own types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from forebay_engine.execution.engine import Engine
from forebay_engine.operator_state.subtask_state import LIST_CHECKPOINTED
from forebay_engine.operator_state.typed import check_class, declared
from forebay_engine.states.kinds import KINDS
from forebay_engine.versions.choosing.reader import VersionReader, open_version
from forebay_engine.versions.format.manifest import lineages_of
from forebay_engine.versions.format.operator_state_entries import Mode
from forebay_state_api.contract.backend import Opening, StateBackend
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.context import RuntimeContext
from forebay_state_api.job.descriptors import ListStateDescriptor, MapStateDescriptor
from forebay_state_api.job.functions import KeyedProcessFunction
from forebay_state_api.keys import KeyGroupRange, canonical_key, key_group_of
from forebay_state_processor.reading.operator_state_rows import operator_states_of, stored_parts
from forebay_testing.scripts import declared as declared_state

OperatorDescriptor = ListStateDescriptor[Any] | MapStateDescriptor[Any, Any]

if TYPE_CHECKING:
    from forebay_engine.versions.format.manifest import Manifest
    from forebay_state_api.codecs import ValueCodec
    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_api.job.descriptors import StateDescriptor


class _Read(KeyedProcessFunction[Any, Any, Any]):
    """Emits the content of a state under one key and namespace."""

    def __init__(self, descriptor: StateDescriptor, namespace: Any) -> None:
        self._descriptor = descriptor
        self._namespace = namespace

    def open(self, context: RuntimeContext) -> None:
        self._state = declared_state(context, self._descriptor)

    def process_element(self, row: Any, ctx: RuntimeContext) -> Any:  # noqa: ARG002 - the contract
        if self._namespace is not None:
            ctx.set_current_namespace(self._namespace)
        return [KINDS[self._descriptor.kind].read(self._state)]


def read_state(
    storage: ObjectStorage,
    descriptor: StateDescriptor,
    key: Any,
    *,
    uid: str,
    backend: type[StateBackend],
    options: Mapping[str, Any],
    key_codec: ValueCodec,
    max_parallelism: int,
    now_us: int,
    namespace: Any = None,
    version: int | None = None,
    run_key: str | None = None,
) -> Any:
    """Return the plain value, list or dict of a state under ``key`` at a committed version.

    ``storage`` is rooted at the operator's folder. ``version`` defaults to the newest complete one;
    0 is the empty version, where every state has its initial content; with ``run_key`` it is the
    version that this run made. Nothing is changed; the version is pinned during the read.
    ``now_us`` decides what has expired in a state with TTL. Raises `ConfigurationError` when no
    state of that name was stored, or with a different backend or max parallelism.
    """
    key = canonical_key(key)
    group = key_group_of(key, max_parallelism)
    only = KeyGroupRange(group, group)

    def read(opening: Opening, manifests: Sequence[Manifest] = ()) -> Any:
        context = RuntimeContext(
            operator_uid=uid,
            subtask_index=0,
            parallelism=1,
            max_parallelism=max_parallelism,
            attempt_number=0,
            batch_id=opening.version,
        )
        opened = backend.open(opening)
        engine = Engine(
            _Read(descriptor, namespace),
            opened,
            context,
            key_codec=key_codec,
            now_us=now_us,
            lineages=lineages_of(manifests),
        )
        try:
            engine.open()
            engine.process([None], [key], [group])
            engine.drain()
            return engine.take_rows()[0]
        finally:
            engine.close(failed=True)
            opened.close()

    if version == 0:
        return read(Opening.outside_job(storage, uid, only, options, now_us=now_us))
    with open_version(
        storage,
        uid=uid,
        version=version,
        range=only,
        max_parallelism=max_parallelism,
        run_key=run_key,
    ) as reader:
        _check_stored(reader, descriptor.name, backend.name)
        return read(reader.opening(options, now_us=now_us), reader.manifests)


def read_operator_state(
    storage: ObjectStorage,
    descriptor: OperatorDescriptor | None,
    *,
    uid: str,
    version: int | None = None,
    run_key: str | None = None,
) -> list[Any]:
    """Return each subtask's part at a committed version, in subtask order.

    The parts are lists, or dicts for a broadcast state. Without ``descriptor`` it is the state of a
    `ListCheckpointed`. ``storage`` is rooted at the operator's folder. ``version`` defaults to the
    newest complete one; with ``run_key`` it is the version that this run made. Nothing is changed;
    the version is pinned during the read. Raises `ConfigurationError` when no state of that name
    was stored, `StateMigrationError` when it has another type.
    """
    asked = ListStateDescriptor(LIST_CHECKPOINTED) if descriptor is None else descriptor
    with open_version(storage, uid=uid, version=version, run_key=run_key) as reader:
        parts = stored_parts(storage, reader.manifests, asked.name)
        if not parts:
            known = ", ".join(operator_states_of(reader.manifests)) or "none"
            raise ConfigurationError(
                f"version {reader.version} of operator {uid!r} has no operator state "
                f"{asked.name!r}; its operator states: {known}"
            )
    mode = parts[0].type.mode
    check_class(asked, mode)
    values = map(declared(asked, mode, uid).unpack, parts)
    return [*map(dict, values)] if mode is Mode.BROADCAST else [*values]


def _check_stored(reader: VersionReader, state: str, backend: str) -> None:
    """Raise if the state does not exist, because ``None`` would look like an empty state."""
    for manifest in reader.manifests:
        if manifest.backend != backend:
            raise ConfigurationError(
                f"version {reader.version} of operator {manifest.uid!r} was made by the backend "
                f"{manifest.backend!r}, not by {backend!r}"
            )
        if state not in manifest.descriptions:
            stored = ", ".join(sorted(manifest.descriptions)) or "none"
            raise ConfigurationError(
                f"version {reader.version} of operator {manifest.uid!r} has no state {state!r}; "
                f"its states: {stored}"
            )
