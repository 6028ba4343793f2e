"""The fields and members that stored values lose and gain as values of the declared type."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import attrs

from forebay_state_api.codecs.generations import shape_of
from forebay_state_api.codecs.records import Field, positions_of
from forebay_state_api.codecs.type_shapes import Description, UnreadableError


@attrs.frozen
class FieldChange:
    """A field of a stored type that differs from the declared one."""

    field: str
    """The field's path in the value: names are joined by dots, and ``[]`` is an element or a
    value."""
    change: Literal["dropped", "added", "renamed", "narrowed"]
    """``narrowed`` is an enumeration that lost a member: a stored one cannot be read any more."""
    former: str | None = None
    """The stored name of a renamed field; the member that an enumeration lost."""

    @property
    def loses(self) -> bool:
        """Whether stored values lose something."""
        return self.change in ("dropped", "narrowed")


def field_changes(
    stored: Description, declared: Mapping[str, Any], path: str = ""
) -> Iterator[FieldChange]:
    """Yield the changes from a stored description to a declaration that can read it.

    A `MigratedFrom` has no changes: its function gets the complete stored value.
    """
    if _is_migrated(stored, declared):
        return
    if declared["type"] == "optional":
        inner = stored["of"] if stored["type"] == "optional" else stored
        yield from field_changes(inner, declared["of"], path)
    elif stored["type"] == declared["type"] == "record":
        yield from _of_record(stored, declared, path)
    elif stored["type"] == declared["type"] == "enum":
        for member in stored["members"]:
            if member not in declared["members"]:
                yield FieldChange(path, "narrowed", member)
    elif stored["type"] == declared["type"]:
        parts = _PARTS.get(stored["type"], _no_parts)
        for one, other in zip(parts(stored), parts(declared), strict=False):
            yield from field_changes(one, other, f"{path}[]")


def _no_parts(_: Description) -> Sequence[Description]:
    return ()


_PARTS: Final[Mapping[str, Callable[[Description], Sequence[Description]]]] = {
    "list": lambda one: [one["element"]],
    "tuple_of": lambda one: [one["element"]],
    "tuple": lambda one: one["elements"],
    "dict": lambda one: [one["key"], one["value"]],
}
"""Type of a container → its parts."""


def _is_migrated(stored: Description, declared: Mapping[str, Any]) -> bool:
    migrated = declared.get("migrated", ())
    if not migrated or stored in migrated:
        return bool(migrated)
    own = {name: part for name, part in declared.items() if name != "migrated"}
    try:
        shape_of(own).reader(stored)
    except UnreadableError:
        return True
    return False


def _of_record(
    stored: Description, declared: Mapping[str, Any], path: str
) -> Iterator[FieldChange]:
    fields = [
        Field(one["name"], shape_of(one["type"]), aliases=tuple(one.get("aliases", ())))
        for one in declared["fields"]
    ]
    found = positions_of(fields, stored)
    positions = {one.name: found[one.name] for one in fields if one.name in found}
    for position, one in enumerate(stored["fields"]):
        if position not in positions.values():
            yield FieldChange(_below(path, one["name"]), "dropped")
    for one in declared["fields"]:
        name = one["name"]
        if name not in positions:
            yield FieldChange(_below(path, name), "added")
            continue
        before = stored["fields"][positions[name]]
        if before["name"] != name:
            yield FieldChange(_below(path, name), "renamed", before["name"])
        yield from field_changes(before["type"], one["type"], _below(path, name))


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
