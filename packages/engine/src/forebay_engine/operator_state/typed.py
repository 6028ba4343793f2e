"""Make a descriptor's codecs, and read values stored under an older declaration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from forebay_engine.operator_state.restored import Part
from forebay_engine.versions.format.operator_state_entries import Mode, StateType
from forebay_state_api.codecs import ValueCodec, codec_for, resolve
from forebay_state_api.codecs.wrapping_codecs import optional_codec
from forebay_state_api.errors import ConfigurationError, StateMigrationError
from forebay_state_api.job.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
)

_WAY_OUT = "declare it as it was stored, or give the new state another name"


@attrs.frozen(kw_only=True)
class Declared:
    """The running function's declaration of an operator state."""

    name: str
    uid: str
    mode: Mode
    descriptor: StateDescriptor
    value: ValueCodec
    key: ValueCodec | None
    """Codec of a broadcast state's user keys."""

    @property
    def type(self) -> StateType:
        """The type to store with the values."""
        return StateType(
            mode=self.mode,
            value=self.value.description,
            key=None if self.key is None else self.key.description,
        )

    @property
    def what(self) -> str:
        """The state's name in messages."""
        return f"operator state {self.name!r} of operator {self.uid!r}"

    def pack(self, values: list[Any]) -> list[Any]:
        """Return the stored elements of ``values``; (key, value) pairs for a broadcast state."""
        if self.key is None:
            return self.value.pack_each(values)
        keys = self.key.pack_each([key for key, _ in values])
        packed = self.value.pack_each([value for _, value in values])
        return [list(pair) for pair in zip(keys, packed, strict=True)]

    def unpack(self, part: Part) -> list[Any]:
        """Decode the result of `pack`; raises `StateMigrationError` if types do not match."""
        if part.type.mode is not self.mode:
            raise StateMigrationError(
                f"{self.what} was stored by {part.type.mode.method}, and is declared by "
                f"{self.mode.method}; {_WAY_OUT}"
            )
        value = self._reading("elements" if self.key is None else "values", part.type.value)
        if self.key is None:
            return _each(value, part.elements)
        key = self._reading("user keys", part.type.key or {}, self.key)
        keys = _each(key, [pair[0] for pair in part.elements])
        return list(zip(keys, _each(value, [pair[1] for pair in part.elements]), strict=True))

    def _reading(
        self, part: str, stored: Mapping[str, Any], declared: ValueCodec | None = None
    ) -> ValueCodec:
        try:
            return resolve(stored, declared or self.value)
        except StateMigrationError as error:
            raise StateMigrationError(f"{self.what}, {part}: {error}; {_WAY_OUT}") from error


def check_class(descriptor: Any, mode: Mode) -> None:
    """Raise `TypeError` unless the getter of ``mode`` takes ``descriptor``."""
    wanted = MapStateDescriptor if mode is Mode.BROADCAST else ListStateDescriptor
    if not isinstance(descriptor, wanted):
        raise TypeError(f"{mode.method} takes a {wanted.__name__}, not {descriptor!r}")


def declared(descriptor: StateDescriptor, mode: Mode, uid: str) -> Declared:
    """Check a descriptor and make its codecs."""
    what = f"operator state {descriptor.name!r} of operator {uid!r}"
    if descriptor.ttl is not None:
        raise ConfigurationError(
            f"{what}: operator state has no TTL; leave ttl out of the descriptor"
        )
    value = codec_for(descriptor.value_type, what=what)
    key = None
    if isinstance(descriptor, MapStateDescriptor):
        value = optional_codec(value)
        key = codec_for(descriptor.key_type, what=f"user key of {what}")
    return Declared(
        name=descriptor.name,
        uid=uid,
        mode=mode,
        descriptor=descriptor,
        value=value,
        key=key,
    )


def _each(codec: ValueCodec, elements: list[bytes] | Any) -> list[Any]:
    return codec.unpack_each(b"".join(elements), [len(element) for element in elements])
