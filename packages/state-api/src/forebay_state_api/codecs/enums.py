"""Shapes of enumerations: members are stored by name, flags by the names they consist of."""

from __future__ import annotations

import enum
from functools import reduce
from operator import attrgetter, or_
from typing import Any

from forebay_state_api.codecs.type_shapes import (
    Code,
    Description,
    Function,
    MisfitError,
    TypeShape,
    a_class,
    another_class,
)
from forebay_state_api.errors import StateMigrationError


class EnumShape(TypeShape):
    """Members of one enumeration."""

    def __init__(self, cls: type[enum.Enum]) -> None:
        """Describe ``cls``."""
        self.description = {
            "type": "enum",
            "name": cls.__qualname__,
            "members": [member.name for member in cls],
        }
        self._cls = cls
        self.classes = self.exact = frozenset({cls})
        self.to_plain = attrgetter("_name_")

    def convert(self, value: Any) -> Any:
        """Return the member."""
        if type(value) is not self._cls:
            raise MisfitError("", another_class(value, self._cls))
        return value

    def reader(self, stored: Description) -> Function:
        """Accept enumerations; reading a member that was removed is an error."""
        self.check_type(stored)
        return _Members(self._cls).__getitem__


class FlagShape(EnumShape):
    """Members of one Flag, and combinations of named ones."""

    def __init__(self, cls: type[enum.Flag]) -> None:
        """Describe ``cls``."""
        super().__init__(cls)
        self.exact = frozenset()
        self.to_plain = _flag_name

    def test(self, subject: str, code: Code) -> str:
        """Pass named members."""
        names = code.bind(frozenset(self.description["members"]))
        return f"type({subject}) is {code.bind(self._cls)} and {subject}._name_ in {names}"

    def convert(self, value: Any) -> Any:
        """Return the member. Bits that have no name are refused."""
        super().convert(value)
        if reduce(or_, value, self._cls(0)) != value:
            raise MisfitError("", "a flag with bits that have no name")
        return value


class _Members(dict[str, Any]):
    """Name → member, aliases and combinations included."""

    def __init__(self, cls: type[enum.Enum]) -> None:
        super().__init__(cls.__members__)
        self._cls = cls

    def __missing__(self, name: str) -> Any:
        if type(name) is not str:
            raise TypeError(f"{a_class(name)} in place of the name of a member")
        if issubclass(self._cls, enum.Flag) and ("|" in name or not name):
            return reduce(or_, [self[part] for part in name.split("|") if part], self._cls(0))
        members = ", ".join(self._cls.__members__)
        raise StateMigrationError(
            f"stored state holds {self._cls.__qualname__}.{name}, which is no longer a member "
            f"(the members are {members}); keep it, if need be with another value or as an alias"
        )


def _flag_name(value: enum.Flag) -> str:
    return "|".join([member.name or "" for member in value])
