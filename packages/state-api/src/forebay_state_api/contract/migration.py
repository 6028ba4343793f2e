"""Check and read data stored under an older declaration of a state, alike for all backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from forebay_state_api.codecs import ValueCodec, describe_type, resolve
from forebay_state_api.codecs.generations import shape_of
from forebay_state_api.contract.backend import TableSpec
from forebay_state_api.errors import StateMigrationError

__all__ = [
    "Lineage",
    "continued",
    "described",
    "only_generation",
    "reader_of",
    "says_more",
    "with_ttl_of",
]

_WAY_OUT: Final = (
    "declare the stored type, give added fields a default and renamed ones an Alias, migrate it "
    "with MigratedFrom(stored type, function), or give the new state another name"
)

_NAMES: Final = ("name", "kind")
"""Parts of a class's description other than its fields or members."""


@attrs.frozen
class Lineage:
    """The declarations of one stored state over time."""

    description: Mapping[str, Any]
    """`TableSpec.description` of the last declaration."""
    generations: Sequence[Mapping[str, Any]]
    """`TableSpec.generations` of the last declaration."""


def only_generation(description: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the single known generation of a state from an older release."""
    return {part: description.get(part) for part in ("value", "user_key")}


def says_more(spec: TableSpec) -> bool:
    """Return whether a state's generations hold more than its description and must be stored."""
    return bool(spec.generations) and [*spec.generations] != [only_generation(spec.description())]


def continued(spec: TableSpec, lineage: Lineage | None) -> TableSpec:
    """Return the spec of a declared state, extended by the generations that are stored.

    Raises `StateMigrationError` if data of any generation cannot be read with it. So every backend
    refuses it at the declaration, whether or not such data still exist.
    """
    if lineage is None:
        return attrs.evolve(spec, generations=[_declared(spec)])
    stored, generations = lineage.description, lineage.generations
    if not _same_types(stored, spec.description()):
        # Use the declaration itself: only now can a Codec report which data it reads.
        reader_of(stored, spec)
        generations = [*generations, _declared(spec)]
    spec = attrs.evolve(spec, generations=generations)
    # The newest generation has the types of `stored`, and nothing has to convert its data.
    older = len(lineage.generations) - (stored == spec.description())
    for number in reversed(range(older)):
        types = described(lineage.generations[number])
        reader_of({**stored, **types, "generation": number}, spec)
    return spec


def with_ttl_of(spec: TableSpec, lineage: Lineage) -> Lineage:
    """Return ``lineage`` as if the stored state had a TTL exactly if ``spec`` has one.

    Returns the same object if that is so.
    """
    if lineage.description["ttl"] == spec.ttl:
        return lineage
    return attrs.evolve(lineage, description={**lineage.description, "ttl": spec.ttl})


def _same_types(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether at most the names and kinds of classes have changed."""
    parts = ("value", "user_key")
    return all(
        one[part] == other[part] or _structure(one[part]) == _structure(other[part])
        for part in parts
    )


def _structure(plain: Any) -> Any:
    if isinstance(plain, Mapping):
        left_out = _NAMES if plain.get("type") in ("record", "enum") else ()
        return {key: _structure(part) for key, part in plain.items() if key not in left_out}
    return [*map(_structure, plain)] if isinstance(plain, list | tuple) else plain


def _declared(spec: TableSpec) -> Mapping[str, Any]:
    user_key = None if spec.user_key is None else spec.user_key.declaration
    return {"value": spec.value.declaration, "user_key": user_key}


def described(generation: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the descriptions of value and user key in one of `TableSpec.generations`."""
    return {
        part: declaration and shape_of(declaration).description
        for part, declaration in generation.items()
    }


def reader_of(stored: Mapping[str, Any], spec: TableSpec) -> TableSpec:
    """Return ``spec`` with codecs that unpack data stored under ``stored``.

    ``stored`` is an earlier `TableSpec.description`, ``spec`` the current declaration; the codecs
    pack as before. Raises `StateMigrationError` naming the state, the stored and the declared type
    and the remedy: for a different kind, a different key type, TTL switched on or off, and a type
    that cannot be read as the declared one.
    """
    if stored == spec.description():
        return spec
    if stored["kind"] != spec.kind:
        raise _migration_error(spec, f"kind {stored['kind']}", f"kind {spec.kind}")
    if stored["ttl"] != spec.ttl:
        raise _migration_error(
            spec, _ttl(stored["ttl"]), _ttl(spec.ttl), "declare it with switch_ttl=True"
        )
    if stored["key"] != spec.key.description:
        old, new = describe_type(stored["key"]), describe_type(spec.key.description)
        raise StateMigrationError(
            f"state {spec.name!r} was stored under keys of type {old}, and its keys are now of "
            f"type {new}: keys do not migrate. Cast the key column to its old type, or begin with "
            "empty state under another uid"
        )
    user_key = spec.user_key
    if spec.ordered and user_key is not None:
        if stored["user_key"] != user_key.description:
            old, new = describe_type(stored["user_key"]), describe_type(user_key.description)
            raise _migration_error(spec, f"sorted user key {old}", f"sorted user key {new}")
    elif user_key is not None:
        user_key = _reading(spec, "user_key", stored, user_key)
    return attrs.evolve(spec, value=_reading(spec, "value", stored, spec.value), user_key=user_key)


def _reading(
    spec: TableSpec, part: str, stored: Mapping[str, Any], declared: ValueCodec
) -> ValueCodec:
    # Check its own generation too: the release that wrote the data may not have numbered them.
    since = spec.generations[stored.get("generation", 0) :]
    try:
        return resolve(stored[part], declared, [generation[part] for generation in since])
    except StateMigrationError as fault:
        what = part.replace("_", " ")
        raise StateMigrationError(f"state {spec.name!r}, {what}: {fault}; {_WAY_OUT}") from fault


def _migration_error(
    spec: TableSpec, stored: str, declared: str, way: str = "declare it as it was stored"
) -> StateMigrationError:
    return StateMigrationError(
        f"state {spec.name!r} was stored with {stored}, and is declared with {declared}; {way}, or "
        "give the new state another name"
    )


def _ttl(on: bool) -> str:  # noqa: FBT001 - one private caller
    return "TTL" if on else "no TTL"
