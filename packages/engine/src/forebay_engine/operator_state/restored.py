"""The operator state in the opened version, as one subtask restores it.

With the same parallelism a subtask needs only its own manifest, which it has already read. The
other manifests are read if the parallelism changed, or for a union state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from forebay_engine.operator_state.redistribution import broadcast_source, even_share
from forebay_engine.versions.format.blobs import Blob, read_blob
from forebay_engine.versions.format.operator_state_entries import (
    Mode,
    OperatorStateContent,
    StateContent,
    StateType,
    unpacked,
)
from forebay_state_api.codecs import decoding
from forebay_state_api.errors import StateMigrationError

if TYPE_CHECKING:
    from forebay_engine.execution.identity import SubtaskIdentity
    from forebay_engine.versions.format.manifest import Manifest
    from forebay_engine.versions.operator import TaskVersion
    from forebay_state_api.contract.object_storage import ObjectStorage
    from forebay_state_api.keys import KeyGroupRange


@attrs.frozen
class Part:
    """Stored elements of one type."""

    type: StateType
    elements: Sequence[Any]


class Restored:
    """Operator state of the opened version, for one subtask."""

    def __init__(
        self,
        *,
        own: Sequence[tuple[KeyGroupRange, Manifest]],
        everyone: Callable[[], Sequence[Manifest]],
        subtask: int,
        parallelism: int,
        storage: ObjectStorage | None,
        version: int,
    ) -> None:
        """``own`` are the manifests of the subtask's key groups; ``everyone`` reads all."""
        self._own = own
        self._everyone = everyone
        self._subtask = subtask
        self._parallelism = parallelism
        self._storage = storage
        self._version = version
        self.exists = any(manifest.operator_state for _, manifest in own)
        """Whether the operator had operator state; the same for all of its subtasks."""
        self.is_unmoved = len(own) == 1 and own[0][1].made.parallelism == parallelism
        """Whether the parallelism is unchanged, so that each subtask keeps its own state."""

    @classmethod
    def of(cls, making: TaskVersion | None, task: SubtaskIdentity) -> Restored:
        """Return the state that ``task`` opened; empty without versions."""
        return cls(
            own=() if making is None else making.clipped_manifests,
            everyone=tuple if making is None else making.every_manifest,
            subtask=task.subtask,
            parallelism=task.parallelism,
            storage=None if making is None else making.storage,
            version=0 if making is None else making.opened_version,
        )

    @functools.cached_property
    def mine(self) -> OperatorStateContent:
        """The subtask's own content, if the parallelism is unchanged."""
        return (
            OperatorStateContent.loaded(self._own[0][1].operator_state)
            if self.is_unmoved
            else OperatorStateContent()
        )

    @functools.cached_property
    def all(self) -> Sequence[OperatorStateContent]:
        """The content of every old subtask, in order."""
        if not self.exists:
            return ()
        return [
            OperatorStateContent.loaded(manifest.operator_state) for manifest in self._everyone()
        ]

    def names(self) -> set[str]:
        """Return the stored states in which this subtask has a part."""
        sources = [self.mine] if self.is_unmoved else self.all
        return {name for content in sources for name in content.states}

    def type_of(self, name: str) -> StateType | None:
        """Return the declaration under which a state was stored."""
        sources = [self.mine] if self.is_unmoved else self.all
        return next((c.states[name].type for c in sources if name in c.states), None)

    def share(self, name: str, mode: Mode) -> list[Part]:
        """Return this subtask's parts of a state."""
        if self.is_unmoved:
            return [self._part(name, self.mine)]
        if mode is Mode.BROADCAST:
            source = broadcast_source(self._subtask, len(self.all) or 1)
            return [self._part(name, content) for content in self.all[source : source + 1]]
        return self._even_share(self.everything(name))

    def everything(self, name: str) -> list[Part]:
        """Return the elements of all subtasks, in order."""
        return [self._part(name, content) for content in self.all if name in content.states]

    def raw(self) -> Sequence[Blob]:
        """Return the byte streams assigned to this subtask."""
        if self.is_unmoved:
            return self.mine.raw
        streams = [blob for content in self.all for blob in content.raw]
        return even_share(streams, self._subtask, self._parallelism)

    def keyed_raw(self) -> dict[int, bytes]:
        """Return key group → its byte stream, for the groups of this subtask."""
        found: dict[int, bytes] = {}
        for groups, manifest in self._own:
            blob = OperatorStateContent.loaded(manifest.operator_state).keyed_raw
            with decoding(lambda _: f"byte streams of keys in version {self._version}"):
                streams = {} if blob is None else unpacked(self.read(blob, "byte streams of keys"))
                found |= {group: data for group, data in streams.items() if group in groups}
        return found

    def kept(self, name: str) -> Part:
        """Return the subtask's part of a state that is not declared any more."""
        parts = self.share(name, self._mode(name))
        types = [part.type for part in parts]
        if any(one != types[0] for one in types):
            raise StateMigrationError(
                f"operator state {name!r} of version {self._version} was stored with different "
                "types by different subtasks, and is not declared any more: declare it to read it"
            )
        state_type = types[0] if types else self._type(name)
        return Part(state_type, [element for part in parts for element in part.elements])

    def read(self, blob: Blob, what: str) -> bytes:
        """Return the bytes of a blob, verified."""
        if isinstance(blob, bytes) or self._storage is None:
            assert isinstance(blob, bytes)
            return blob
        return read_blob(self._storage, blob, f"{what} in version {self._version}")

    def _part(self, name: str, content: OperatorStateContent) -> Part:
        state = content.states.get(name)
        if state is None:
            return Part(self._type(name), ())
        with decoding(lambda _: f"operator state {name!r} in version {self._version}"):
            return Part(state.type, unpacked(self._bytes(name, state)))

    def _bytes(self, name: str, state: StateContent) -> bytes:
        return self.read(state.blob, f"operator state {name!r}")

    def _even_share(self, parts: Sequence[Part]) -> list[Part]:
        elements = [(number, one) for number, part in enumerate(parts) for one in part.elements]
        mine = even_share(elements, self._subtask, self._parallelism)
        shared = (
            Part(part.type, [one for at, one in mine if at == number])
            for number, part in enumerate(parts)
        )
        return [part for part in shared if part.elements]

    def _type(self, name: str) -> StateType:
        found = self.type_of(name)
        assert found is not None
        return found

    def _mode(self, name: str) -> Mode:
        return self._type(name).mode
