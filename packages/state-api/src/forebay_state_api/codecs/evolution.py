"""`Alias` and `MigratedFrom`: what a declared type says about types of the past.

Both stand in an ``Annotated``, at any depth of a type, and leave no trace in what is stored::

    @attrs.frozen
    class Account:
        balance: Annotated[float, Alias("total")]  # the field was named total before
        currency: str = "EUR"


    ValueStateDescriptor("account", Annotated[Account, MigratedFrom(int, account_of_total)])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs

from forebay_state_api.codecs._shape import (
    Code,
    Description,
    Function,
    MisfitError,
    Shape,
    UnreadableError,
)
from forebay_state_api.codecs.describe import describe_type
from forebay_state_api.codecs.plain import Layout
from forebay_state_api.errors import StateMigrationError

SPARK_ALIAS: Final = "forebay.alias"
"""Key in the metadata of a ``StructField``: a former name of the field, or a list of them."""


@attrs.frozen(init=False)
class Alias:
    """Former names of a field: data that lack the field are searched for these, in order.

    A stored field that an alias stands for is not read under its own name as well, so the old name
    may come back as another field.
    """

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        """``names``: at least one."""
        if not names or not all(type(name) is str and name for name in names):
            message = f"Alias takes former names of a field, not {names!r}"
            raise TypeError(message)
        self.__attrs_init__(names)


@attrs.frozen
class MigratedFrom:
    """Data that were stored as ``stored_type`` become values by ``migrate(value)``.

    Used for exactly that stored type, and for others that the declared type cannot read and that
    ``stored_type`` can. Called whenever such data are read, on several threads at once; the same
    value must give the same result. What it raises is a `StateMigrationError` with that as its
    cause. Data stay as they were stored until they are written again, so it stays in the
    declaration: a restart without it is refused.
    """

    stored_type: Any
    """Whatever a descriptor takes as a type."""
    migrate: Callable[[Any], Any]


class MigratingShape(Shape):
    """A shape, and the ways to it from types of the past."""

    def __init__(self, of: Shape, ways: Sequence[tuple[Shape, MigratedFrom]]) -> None:
        """Everything but reading is that of ``of``; ``ways`` are tried in order."""
        self._of = of
        self._ways = ways
        self.description = of.description
        self.layout = of.layout
        self.exact = of.exact
        self.classes = of.classes
        self.copy = of.copy
        self.to_plain = of.to_plain
        self.address = of.address
        self.original = of.original

    @property
    def declaration(self) -> dict[str, Any]:
        """As declared, and the types that are migrated."""
        return {**self._of.declaration, "migrated": [old.description for old, _ in self._ways]}

    def test(self, subject: str, code: Code) -> str:
        """As declared."""
        return self._of.test(subject, code)

    def taken(self, subject: str, code: Code) -> str:
        """As declared."""
        return self._of.taken(subject, code)

    def convert(self, value: Any) -> Any:
        """As declared."""
        return self._of.convert(value)

    def reader(self, stored: Description) -> Function | None:
        """Read what can be read, and migrate what cannot."""
        return self._reading(stored)[0]

    def layout_of(self, stored: Description) -> Layout:
        """The layout of the type that reads ``stored``."""
        return self._reading(stored)[1]

    def _reading(self, stored: Description) -> tuple[Function | None, Layout]:
        if stored != self.description:
            for old, way in self._ways:
                if stored == old.description:
                    return self._through(old, way, stored)
        try:
            return self._of.reader(stored), self._of.layout_of(stored)
        except UnreadableError:
            for old, way in self._ways:
                try:
                    return self._through(old, way, stored)
                except UnreadableError:  # the next way may read it
                    continue
            raise

    def _through(
        self, old: Shape, way: MigratedFrom, stored: Description
    ) -> tuple[Function, Layout]:
        read = old.reader(stored)

        def migrated(plain: Any) -> Any:
            value = plain if read is None else read(plain)
            try:
                return self._of.convert(way.migrate(value))
            except MisfitError as fault:
                raise self._failed(old, way, f"gave {fault.path.strip()} {fault.problem}") from None
            except Exception as error:
                what = f"raised {type(error).__name__}: {error}"
                raise self._failed(old, way, what) from error

        return migrated, old.layout_of(stored)

    def _failed(self, old: Shape, way: MigratedFrom, what: str) -> StateMigrationError:
        name = getattr(way.migrate, "__qualname__", repr(way.migrate))
        types = f"{describe_type(old.description)} to {describe_type(self.description)}"
        return StateMigrationError(f"the migration {name} from {types} {' '.join(what.split())}")
