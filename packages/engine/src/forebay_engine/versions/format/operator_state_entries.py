"""The operator state in one manifest, and its representation there as plain data.

::

    {"states": {<name>: {"mode": …, "value": <type>, "key": <type> or None, "blob": <blob>}},
     "raw": [<blob>, …],       # one for each byte stream
     "keyed_raw": <blob>}      # msgpack of {key group: bytes}; absent without streams

The blob of a list is the msgpack of its elements' bytes; the blob of a broadcast state is the
msgpack of ``[key bytes, value bytes]`` pairs. The mapping is empty only if the function has never
had operator state; otherwise it shows every subtask that there is state to redistribute.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import msgpack

from forebay_engine.versions.format.blobs import Blob, FileBlob, loaded_blob, stored_blob
from forebay_state_api.codecs import decoding


class Mode(enum.Enum):
    """The redistribution of an operator state; the values are stored."""

    SPLIT = "split"
    UNION = "union"
    BROADCAST = "broadcast"

    @property
    def method(self) -> str:
        """The method that declares a state of this mode."""
        return _METHODS[self]


_METHODS = {
    Mode.SPLIT: "get_list_state",
    Mode.UNION: "get_union_list_state",
    Mode.BROADCAST: "get_broadcast_state",
}


@attrs.frozen(kw_only=True)
class StateType:
    """The declaration of a state."""

    mode: Mode
    value: Mapping[str, Any]
    """Description of the elements, or of the map's values."""
    key: Mapping[str, Any] | None
    """Description of the user keys of a map."""


@attrs.frozen
class StateContent:
    """One state of one subtask."""

    type: StateType
    blob: Blob


@attrs.frozen(kw_only=True)
class OperatorStateContent:
    """All operator state of one subtask and version."""

    exists: bool = False
    """Whether the operator has, or had, operator state; the same for all of its subtasks."""
    states: Mapping[str, StateContent] = attrs.field(factory=dict)
    raw: Sequence[Blob] = ()
    keyed_raw: Blob | None = None

    def stored(self) -> dict[str, Any]:
        """Return the value as plain data for a manifest."""
        if not self.exists:
            return {}
        keyed = {} if self.keyed_raw is None else {"keyed_raw": stored_blob(self.keyed_raw)}
        return {
            "states": {name: _stored(state) for name, state in self.states.items()},
            "raw": [stored_blob(blob) for blob in self.raw],
            **keyed,
        }

    @classmethod
    def loaded(cls, stored: Mapping[str, Any]) -> OperatorStateContent:
        """Decode the result of `stored`; an empty mapping means no operator state."""
        if not stored:
            return cls()
        keyed = stored.get("keyed_raw")
        with decoding(lambda _: "operator state in a manifest"):
            return cls(
                exists=True,
                states={name: _loaded(state) for name, state in stored["states"].items()},
                raw=[loaded_blob(blob) for blob in stored["raw"]],
                keyed_raw=None if keyed is None else loaded_blob(keyed),
            )

    def mapped(self, change: Callable[[Blob], Blob]) -> OperatorStateContent:
        """Return a copy with ``change`` applied to every blob."""
        return attrs.evolve(
            self,
            states={n: attrs.evolve(s, blob=change(s.blob)) for n, s in self.states.items()},
            raw=[change(blob) for blob in self.raw],
            keyed_raw=None if self.keyed_raw is None else change(self.keyed_raw),
        )

    def blobs(self) -> Iterator[Blob]:
        """Yield all of its blobs."""
        yield from (state.blob for state in self.states.values())
        yield from self.raw
        if self.keyed_raw is not None:
            yield self.keyed_raw

    def files(self) -> list[FileBlob]:
        """Return the files that it needs."""
        return [blob for blob in self.blobs() if isinstance(blob, FileBlob)]


def packed(parts: Any) -> bytes:
    """Encode the parts of a blob."""
    data: bytes = msgpack.packb(parts, use_bin_type=True)
    return data


def unpacked(data: bytes) -> Any:
    """Decode the result of `packed`."""
    return msgpack.unpackb(data, raw=False, strict_map_key=False)


def _stored(state: StateContent) -> dict[str, Any]:
    declared = state.type
    return {
        "mode": declared.mode.value,
        "value": declared.value,
        "key": declared.key,
        "blob": stored_blob(state.blob),
    }


def _loaded(stored: Mapping[str, Any]) -> StateContent:
    declared = StateType(mode=Mode(stored["mode"]), value=stored["value"], key=stored["key"])
    return StateContent(declared, loaded_blob(stored["blob"]))
