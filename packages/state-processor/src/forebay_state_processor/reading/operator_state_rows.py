"""Operator and broadcast state of a version, as plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from forebay_engine.codecs.stored_codec import stored_codec
from forebay_engine.operator_state.restored import Part
from forebay_engine.versions.format.blobs import read_blob
from forebay_engine.versions.format.operator_state_entries import (
    Mode,
    OperatorStateContent,
    unpacked,
)
from forebay_state_api.codecs import decoding
from forebay_state_processor.reading.stored_states import type_text

if TYPE_CHECKING:
    from forebay_engine.versions.format.manifest import Manifest
    from forebay_state_api.contract.object_storage import ObjectStorage


@attrs.frozen(kw_only=True)
class OperatorStateInfo:
    """One state without a key."""

    name: str
    mode: str
    """The kind of redistribution: ``split``, ``union`` or ``broadcast``."""
    type: str
    """The type of elements, as text; for broadcast state ``user key → value``."""


def operator_states_of(manifests: Sequence[Manifest]) -> dict[str, OperatorStateInfo]:
    """Return the operator states of a version by name."""
    found: dict[str, OperatorStateInfo] = {}
    for manifest in manifests:
        for name, state in OperatorStateContent.loaded(manifest.operator_state).states.items():
            text = type_text(state.type.key, state.type.value)
            found[name] = OperatorStateInfo(name=name, mode=state.type.mode.value, type=text)
    return dict(sorted(found.items()))


def operator_state_parts(
    storage: ObjectStorage, manifests: Sequence[Manifest], name: str
) -> list[Any]:
    """Return each subtask's part of an operator state, in subtask order: lists, or dicts."""
    what = f"operator state {name!r}"
    with decoding(lambda _: f"{what} in {storage.url}"):
        return [_values(part, what) for part in stored_parts(storage, manifests, name)]


def stored_parts(storage: ObjectStorage, manifests: Sequence[Manifest], name: str) -> list[Part]:
    """Return each subtask's part of an operator state as it is stored, in subtask order."""
    made = sorted(manifests, key=lambda manifest: manifest.made.range.start)
    states = [OperatorStateContent.loaded(one.operator_state).states.get(name) for one in made]
    what = f"operator state {name!r}"
    return [
        Part(state.type, unpacked(read_blob(storage, state.blob, what)))
        for state in states
        if state is not None
    ]


def _values(part: Part, what: str) -> Any:
    value = stored_codec(part.type.value, what=what)
    if part.type.mode is not Mode.BROADCAST:
        return [value.unpack_one(element) for element in part.elements]
    assert part.type.key is not None
    key = stored_codec(part.type.key, what=f"user key of {what}")
    return {key.unpack_one(k): value.unpack_one(v) for k, v in part.elements}
