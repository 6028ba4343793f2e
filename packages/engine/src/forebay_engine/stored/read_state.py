"""Read one key's committed state from outside a micro-batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from forebay_engine.execution.engine import Engine
from forebay_engine.states.kinds import KINDS
from forebay_engine.versions.choosing.reader import open_version
from forebay_engine.versions.format.manifest import lineages_of
from forebay_state_api.contract.backend import Opening, StateBackend
from forebay_state_api.contract.files import ParentState
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.context import RuntimeContext
from forebay_state_api.job.functions import KeyedProcessFunction
from forebay_state_api.keys import KeyGroupRange, canonical_key, key_group_of

if TYPE_CHECKING:
    from forebay_engine.versions.choosing.reader import VersionReader
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
        self._state = context._declare(self._descriptor)

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

    def read(
        version: int, parents: Sequence[ParentState], manifests: Sequence[Manifest] = ()
    ) -> Any:
        opening = Opening(
            storage=storage,
            path=f"{storage.url}#reader",
            uid=uid,
            version=version,
            range=only,
            parents=parents,
            options=options,
            now_us=now_us,
            cache_bytes=0,
        )
        context = RuntimeContext(
            operator_uid=uid,
            subtask_index=0,
            parallelism=1,
            max_parallelism=max_parallelism,
            attempt_number=0,
            batch_id=version,
        )
        function = _Read(descriptor, namespace)
        opened = backend.open(opening)
        engine = Engine(
            function,
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
        return read(0, ())
    with open_version(
        storage,
        uid=uid,
        version=version,
        range=only,
        max_parallelism=max_parallelism,
        run_key=run_key,
    ) as reader:
        _check_stored(reader, descriptor.name, backend.name)
        return read(reader.version, reader.parents, reader.manifests)


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
