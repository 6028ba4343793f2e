"""`Alias` and `MigratedFrom`: annotations of a declared type about its earlier versions.

Both go into an ``Annotated``, at any depth of a type, and leave no trace in stored data::

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

from forebay_state_api.codecs.describe import describe_type
from forebay_state_api.codecs.plain import ByteLayout
from forebay_state_api.codecs.type_shapes import (
    Code,
    Description,
    Function,
    MisfitError,
    TypeShape,
    UnreadableError,
)
from forebay_state_api.errors import StateMigrationError

SPARK_ALIAS: Final = "forebay.alias"
"""Key in the metadata of a ``StructField``: a former name of the field, or a list of them."""


@attrs.frozen(init=False)
class Alias:
    """Former names of a field; if stored data lack the field, these are tried in order.

    A stored field that is read through an alias is not also read under its own name, so the old
    name can be used again for a new field.
    """

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        """``names`` are one or more former names. Raises `TypeError` for anything else."""
        if not names or not all(type(name) is str and name for name in names):
            raise TypeError(f"Alias takes former names of a field, not {names!r}")
        self.__attrs_init__(names)


@attrs.frozen
class MigratedFrom:
    """Reads data that were stored as ``stored_type`` by calling ``migrate(value)``.

    It applies to exactly that stored type, and to other types that the declared type cannot read
    but ``stored_type`` can. ``migrate`` is called whenever such data are read, possibly on several
    threads at once, and must return the same result for the same value. Its exceptions become
    causes of a `StateMigrationError`. Data stay as they were stored until they are written again,
    so keep the `MigratedFrom` in the declaration: a restart without it is refused.
    """

    stored_type: Any
    """Any type that a descriptor takes."""
    migrate: Callable[[Any], Any]


class MigratingShape(TypeShape):
    """A shape, with migrations to it from earlier types."""

    def __init__(self, of: TypeShape, ways: Sequence[tuple[TypeShape, MigratedFrom]]) -> None:
        """Behave like ``of`` except for reading; ``ways`` are tried in order."""
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
        """The declaration of the shape, plus the migrated types."""
        return {**self._of.declaration, "migrated": [old.description for old, _ in self._ways]}

    def test(self, subject: str, code: Code) -> str:
        """Apply the test of the declared type."""
        return self._of.test(subject, code)

    def taken(self, subject: str, code: Code) -> str:
        """Apply the test of the declared type."""
        return self._of.taken(subject, code)

    def convert(self, value: Any) -> Any:
        """Apply the test of the declared type."""
        return self._of.convert(value)

    def reader(self, stored: Description) -> Function | None:
        """Return a reader that reads compatible data and migrates other data."""
        return self._reading(stored)[0]

    def layout_of(self, stored: Description) -> ByteLayout:
        """Return the layout of the type that reads ``stored``."""
        return self._reading(stored)[1]

    def _reading(self, stored: Description) -> tuple[Function | None, ByteLayout]:
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
        self, old: TypeShape, way: MigratedFrom, stored: Description
    ) -> tuple[Function, ByteLayout]:
        read = old.reader(stored)

        def migrated(plain: Any) -> Any:
            value = plain if read is None else read(plain)
            try:
                return self._of.convert(way.migrate(value))
            except MisfitError as fault:
                raise self._migration_error(
                    old, way, f"gave {fault.path.strip()} {fault.problem}"
                ) from None
            except Exception as error:
                what = f"raised {type(error).__name__}: {error}"
                raise self._migration_error(old, way, what) from error

        return migrated, old.layout_of(stored)

    def _migration_error(self, old: TypeShape, way: MigratedFrom, what: str) -> StateMigrationError:
        name = getattr(way.migrate, "__qualname__", repr(way.migrate))
        types = f"{describe_type(old.description)} to {describe_type(self.description)}"
        return StateMigrationError(f"the migration {name} from {types} {' '.join(what.split())}")
