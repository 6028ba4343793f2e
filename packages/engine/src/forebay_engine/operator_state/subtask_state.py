"""Operator state of one subtask and micro-batch, from the opened version to the manifest."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from forebay_engine.execution.record_methods import Adapter
from forebay_engine.operator_state.restored import Restored
from forebay_engine.operator_state.store import Store
from forebay_engine.versions.format.blobs import Blob, put_blob
from forebay_engine.versions.format.operator_state_entries import OperatorStateContent, packed
from forebay_state_api.contract.file_names import data_name
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.descriptors import ListStateDescriptor
from forebay_state_api.job.functions import called
from forebay_state_api.job.operator_state import (
    CheckpointedFunction,
    CheckpointListener,
    InitializationContext,
    ListCheckpointed,
    SnapshotContext,
)

if TYPE_CHECKING:
    from forebay_engine.execution.identity import SubtaskIdentity
    from forebay_engine.versions.operator import TaskVersion
    from forebay_state_api.job.context import RuntimeContext

_log = logging.getLogger(__name__)

LIST_CHECKPOINTED: Final = "_list_checkpointed_"
"""Name of the state of a `ListCheckpointed`."""


class OperatorState:
    """Calls the function's operator-state methods, and makes the content for the manifest.

    The engine calls `initialize`, `notify` and `snapshot`, in that order, as user code.
    """

    def __init__(self, function: Any, task: SubtaskIdentity, making: TaskVersion | None) -> None:
        """Refuse a function that is both `CheckpointedFunction` and `ListCheckpointed`."""
        self._function = function = function.wrapped if isinstance(function, Adapter) else function
        self._task = task
        self._making = making
        self._restored = Restored.of(making, task)
        self.store = Store(self._restored, task.uid)
        self._raw = _RawStreams(self._restored)
        if isinstance(function, CheckpointedFunction) and isinstance(function, ListCheckpointed):
            raise ConfigurationError(
                f"operator {task.uid!r}: {type(function).__qualname__} is a CheckpointedFunction "
                "and a ListCheckpointed; choose one"
            )

    @property
    def first_phase(self) -> str:
        """Name of the method that `initialize` calls."""
        return "restore_state" if self._is_list else "initialize_state"

    def initialize(self, context: RuntimeContext) -> None:
        """Let the function declare its states and read their content."""
        function = self._function
        if self._is_list:
            self._list = self.store.get_list_state(ListStateDescriptor(LIST_CHECKPOINTED))
            if self._is_restored:
                called(function.restore_state, self._list.get())
        elif isinstance(function, CheckpointedFunction):
            initial = _Initialization(context, self.store, self._raw, restored=self._is_restored)
            called(function.initialize_state, initial)

    def notify(self) -> None:
        """Notify the function that the opened version is committed."""
        opened = 0 if self._making is None else self._making.opened_version
        if opened and isinstance(self._function, CheckpointListener):
            called(self._function.notify_checkpoint_complete, opened)

    @property
    def undeclared(self) -> list[str]:
        """Return stored states that are not declared; known after `initialize` and ``open``."""
        return self.store.undeclared if self._restored.exists else []

    def log_undeclared(self) -> None:
        """Log the stored states that are kept although they are not declared."""
        if kept := self.undeclared:
            _log.info(
                "operator %s, subtask %d: operator state not declared any more, and kept: %s",
                self._task.uid,
                self._task.subtask,
                ", ".join(kept),
            )

    def snapshot(self) -> None:
        """Let the function update its states for the version."""
        function = self._function
        if self._is_list:
            given = called(function.snapshot_state, self._version)
            if not isinstance(given, Iterable) or isinstance(given, (str, bytes, Mapping)):
                raise TypeError(
                    f"snapshot_state of a ListCheckpointed returns a list, not {given!r:.200}"
                )
            self._list.update(given)
        elif isinstance(function, CheckpointedFunction):
            called(function.snapshot_state, _Snapshot(self._version, self._raw, self._task))

    def content(self) -> OperatorStateContent:
        """Return the content for the manifest, with its files durable."""
        kinds = (CheckpointedFunction, ListCheckpointed)
        has_any = isinstance(self._function, kinds) or bool(self.store.declared)
        if not (has_any or self._restored.exists):
            return OperatorStateContent()
        return OperatorStateContent(
            exists=True,
            states=self.store.contents(self._put),
            raw=self._raw.stored(self._put),
            keyed_raw=self._raw.stored_keyed(self._put),
        )

    @property
    def _is_list(self) -> bool:
        return isinstance(self._function, ListCheckpointed)

    @property
    def _is_restored(self) -> bool:
        return self._making is not None and self._making.is_restored

    @property
    def _version(self) -> int:
        return 0 if self._making is None else self._making.version

    def _put(self, data: bytes) -> Blob:
        assert self._making is not None
        return put_blob(self._making.storage, data_name(self._making.version, "operator"), data)


class _RawStreams:
    """The restored byte streams, and the written ones."""

    def __init__(self, restored: Restored) -> None:
        self._restored = restored
        self._touched = False
        self._touched_keyed = False
        self._output: io.BytesIO | None = None
        self._keyed_outputs: dict[int, io.BytesIO] = {}

    def inputs(self) -> list[BinaryIO]:
        self._touched = True
        blobs = self._restored.raw()
        return [io.BytesIO(self._restored.read(blob, "a byte stream")) for blob in blobs]

    def keyed_inputs(self) -> dict[int, BinaryIO]:
        self._touched_keyed = True
        streams = sorted(self._restored.keyed_raw().items())
        return {group: io.BytesIO(data) for group, data in streams}

    def output(self) -> BinaryIO:
        self._touched = True
        if self._output is None:
            self._output = _Output()
        return self._output

    def keyed_output(self, key_group: int) -> BinaryIO:
        self._touched_keyed = True
        return self._keyed_outputs.setdefault(key_group, _Output())

    def stored(self, put: Any) -> Sequence[Blob]:
        if not self._touched:
            return self._restored.raw()
        return [] if self._output is None else [put(_written(self._output))]

    def stored_keyed(self, put: Any) -> Blob | None:
        if self._touched_keyed:
            streams = {group: _written(out) for group, out in self._keyed_outputs.items()}
        elif self._restored.is_unmoved:
            return self._restored.mine.keyed_raw
        else:
            streams = self._restored.keyed_raw()
        blob: Blob | None = put(packed(streams)) if streams else None
        return blob


class _Initialization(InitializationContext):
    def __init__(
        self, context: RuntimeContext, store: Store, raw: _RawStreams, *, restored: bool
    ) -> None:
        self.is_restored = restored
        self.operator_state_store = store
        self.keyed_state_store = context
        self._raw = raw

    @property
    def raw_inputs(self) -> Sequence[BinaryIO]:
        return self._raw.inputs()

    @property
    def raw_keyed_inputs(self) -> Mapping[int, BinaryIO]:
        return self._raw.keyed_inputs()


class _Snapshot(SnapshotContext):
    def __init__(self, version: int, raw: _RawStreams, task: SubtaskIdentity) -> None:
        self.version = version
        self._raw = raw
        self._range = task.range

    @property
    def raw_output(self) -> BinaryIO:
        return self._raw.output()

    def raw_keyed_output(self, key_group: int) -> BinaryIO:
        if key_group not in self._range:
            raise ValueError(
                f"key group {key_group} is not one of this subtask's: {self._range.start} to "
                f"{self._range.end}"
            )
        return self._raw.keyed_output(key_group)


class _Output(io.BytesIO):
    """A stream whose content survives `close`, by a ``with`` or a wrapper."""

    written = b""

    def close(self) -> None:
        if not self.closed:
            self.written = self.getvalue()
        super().close()


def _written(output: io.BytesIO) -> bytes:
    if isinstance(output, _Output) and output.closed:
        return output.written
    return output.getvalue()
