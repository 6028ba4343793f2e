"""Reading what was stored under an older declaration of a state: one answer for all backends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from forebay_state_api.backend import TableSpec
from forebay_state_api.codecs import ValueCodec, describe_type, resolve
from forebay_state_api.errors import StateMigrationError

_WAY_OUT: Final = (
    "declare the stored type, give added fields a default and renamed ones an Alias, migrate it "
    "with MigratedFrom(stored type, function), or give the new state another name"
)


def reader_of(stored: Mapping[str, Any], spec: TableSpec) -> TableSpec:
    """The spec whose codecs unpack what was stored under ``stored`` and pack as ``spec`` does.

    ``stored`` is a `TableSpec.description` of the past, ``spec`` what is declared now. Raises
    `StateMigrationError` naming the state, the stored and the declared type and the way out: for
    another kind, another key type, TTL switched on or off, and a type that cannot be read as the
    declared one.
    """
    if stored == spec.description():
        return spec
    if stored["kind"] != spec.kind.value:
        raise _refused(spec, f"kind {stored['kind']}", f"kind {spec.kind.value}")
    if stored["ttl"] != spec.ttl:
        raise _refused(spec, _ttl(stored["ttl"]), _ttl(spec.ttl))
    if stored["key"] != spec.key.description:
        old, new = describe_type(stored["key"]), describe_type(spec.key.description)
        raise _refused(spec, f"key {old}", f"key {new}")
    return attrs.evolve(
        spec,
        value=_reading(spec, "value", stored["value"], spec.value),
        user_key=spec.user_key and _reading(spec, "user key", stored["user_key"], spec.user_key),
    )


def _reading(
    spec: TableSpec, part: str, stored: Mapping[str, Any], declared: ValueCodec
) -> ValueCodec:
    try:
        return resolve(stored, declared)
    except StateMigrationError as fault:
        raise StateMigrationError(f"state {spec.name!r}, {part}: {fault}; {_WAY_OUT}") from fault


def _refused(spec: TableSpec, stored: str, declared: str) -> StateMigrationError:
    return StateMigrationError(
        f"state {spec.name!r} was stored with {stored}, and is declared with {declared}; declare "
        "it as it was stored, or give the new state another name"
    )


def _ttl(on: bool) -> str:  # noqa: FBT001 - one private caller
    return "TTL" if on else "no TTL"
