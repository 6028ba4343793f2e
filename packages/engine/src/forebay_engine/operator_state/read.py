"""Read committed operator state from outside a micro-batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from forebay_engine.operator_state.restored import Part
from forebay_engine.operator_state.subtask_state import LIST_CHECKPOINTED
from forebay_engine.operator_state.typed import check_class, declared
from forebay_engine.versions.choosing.reader import VersionReader, open_version
from forebay_engine.versions.format.blobs import read_blob
from forebay_engine.versions.format.operator_state_entries import (
    Mode,
    OperatorStateContent,
    unpacked,
)
from forebay_state_api.errors import ConfigurationError
from forebay_state_api.job.descriptors import ListStateDescriptor, MapStateDescriptor

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage

OperatorDescriptor = ListStateDescriptor[Any] | MapStateDescriptor[Any, Any]


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
        made = sorted(reader.manifests, key=lambda manifest: manifest.made.range.start)
        contents = [OperatorStateContent.loaded(manifest.operator_state) for manifest in made]
        mode = _mode(contents, asked.name, reader, uid)
        check_class(asked, mode)
        declaration = declared(asked, mode, uid)
        found = []
        for content in contents:
            values: list[Any] = []
            if (state := content.states.get(asked.name)) is not None:
                what = f"operator state {asked.name!r} in version {reader.version}"
                elements = unpacked(read_blob(storage, state.blob, what))
                values = declaration.unpack(Part(state.type, elements))
            found.append(dict(values) if mode is Mode.BROADCAST else values)
        return found


def _mode(
    contents: Sequence[OperatorStateContent], name: str, reader: VersionReader, uid: str
) -> Mode:
    for content in contents:
        if name in content.states:
            return content.states[name].type.mode
    stored = ", ".join(sorted({name for content in contents for name in content.states})) or "none"
    raise ConfigurationError(
        f"version {reader.version} of operator {uid!r} has no operator state {name!r}; its "
        f"operator states: {stored}"
    )
