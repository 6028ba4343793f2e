"""The structure of a declared type: the `TypeShape` of each type, and a small code generator.

A shape knows the type's description and how to test, convert, copy, flatten and address its
values. Shapes nest as types do; `ValueCodec.of` compiles a whole tree of them into functions.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any, TypeAlias

from forebay_state_api.codecs.describe import describe_type
from forebay_state_api.codecs.plain import TYPED, ByteLayout

Function: TypeAlias = Callable[[Any], Any]
Description: TypeAlias = Mapping[str, Any]


class MisfitError(Exception):
    """A value, or a part of it, is not of the declared type. Becomes a `TypeError`."""

    def __init__(self, path: str, problem: str) -> None:
        """Describe the problem of the part at ``path`` (like ``[1].name``; empty: the whole)."""
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def below(self, step: str) -> MisfitError:
        """Return the same error, seen from the value that holds the part at ``step``."""
        return MisfitError(step + self.path, self.problem)


class UnreadableError(Exception):
    """Data of the stored type cannot be read as the declared type; the text gives the reason."""


class MigrationNeededError(UnreadableError):
    """Only a function or factory of the job can read data of the stored type."""


class UnsupportedTypeError(Exception):
    """A declared type has no shape; the text names the type and the reason."""


class TypeShape(abc.ABC):
    """A declared type, or a part of one."""

    description: dict[str, Any]
    """The type as plain data: ``type`` and the type's parameters."""
    layout: ByteLayout = TYPED
    """The byte layout of values when this is the whole type; parts are always `TYPED`."""
    exact: frozenset[type] = frozenset()
    """If not empty: a value is valid as it is, and immutable, iff its class is one of these."""
    classes: frozenset[type] = frozenset()
    """The users' classes that values consist of, and the classes of the codecs in use."""
    copy: Function | None = None
    """Copies the mutable parts of a value; ``None`` if there are none."""
    to_plain: Function | None = None
    """Value → the object that msgpack writes; ``None`` if it is the value itself."""
    address: Function | None = None
    """Value → a hashable substitute, equal for values that are the same key; ``None`` means the
    value. May raise `TypeError` for a value that cannot be a key."""
    original: Function | None = None
    """Address → value; ``None`` means the address itself."""
    rank: Function | None = None
    """Address → what Python compares in its place, in types of ordered keys; ``None`` means
    itself."""

    def test(self, subject: str, code: Code) -> str:
        """Return an expression that is true only if ``subject`` can be taken without converting.

        It may be false for a value that `convert` accepts.
        """
        if len(self.exact) == 1:
            (only,) = self.exact
            return f"type({subject}) is {code.bind(only)}"
        return f"type({subject}) in {code.bind(self.exact)}"

    def taken(self, subject: str, code: Code) -> str:
        """Return an expression for the stored form of a ``subject`` that passed the test."""
        return code.apply(self.copy, subject)

    @property
    def declaration(self) -> dict[str, Any]:
        """The description, plus the declaration's rules for older data.

        These are former names, the defaults of added fields, and types that a function migrates.
        `forebay_state_api.codecs.generations` applies them without the classes.
        """
        return self.description

    @abc.abstractmethod
    def convert(self, value: Any) -> Any:
        """Return ``value`` in its stored form, sharing no mutable object with it.

        Raises `MisfitError`.
        """

    @abc.abstractmethod
    def reader(self, stored: Description) -> Function | None:
        """Return a function from plain data of the stored type to a value.

        ``None`` means the identity.

        Raises `UnreadableError`.
        """

    def check_type(self, stored: Description) -> None:
        """Raise `UnreadableError` for data of another type, whatever its parameters."""
        if stored["type"] != self.description["type"]:
            raise self.unreadable_error(stored)

    def unreadable_error(self, stored: Description) -> UnreadableError:
        """Return the error for data of a type that cannot be read as this one."""
        return UnreadableError(
            f"{describe_type(stored)} cannot be read as {describe_type(self.description)}"
        )

    def layout_of(self, stored: Description) -> ByteLayout:  # noqa: ARG002 - as it must be
        """Return the layout of values that were stored when that was the whole type."""
        return self.layout


class Code:
    """Compiles generated code, in which objects are bound to names.

    The code contains only names of fields, which are identifiers, and names bound here; values are
    never inserted into it.
    """

    def __init__(self) -> None:
        """Start without names."""
        self.names: dict[str, Any] = {}

    def bind(self, value: Any) -> str:
        """Return a name bound to ``value`` in code compiled here."""
        name = f"_{len(self.names)}"
        self.names[name] = value
        return name

    def apply(self, function: Function | None, subject: str) -> str:
        """Return an expression that applies ``function``; ``None`` is the identity."""
        return subject if function is None else f"{self.bind(function)}({subject})"

    def function(self, expression: str) -> Function:
        """Compile ``lambda v: <expression>``."""
        function: Function = eval(_parsed(f"lambda v: {expression}", "eval"), self.names)  # noqa: S307 - see class
        return function

    def block(self, lines: Sequence[str]) -> Function:
        """Compile a function of ``v`` with these lines as its body."""
        body = "".join(f"    {line}\n" for line in lines)
        exec(_parsed(f"def function(v):\n{body}", "exec"), self.names)  # noqa: S102 - see class
        function: Function = self.names["function"]
        return function


@functools.lru_cache(maxsize=4096)
def _parsed(text: str, mode: str) -> CodeType:
    """Compile a text once: every micro-batch declares the same states again."""
    return compile(text, "<codec>", mode)


def tuple_function(functions: Sequence[Function | None], subjects: Sequence[str]) -> Function:
    """Compile ``lambda v: (f0(<subject 0>), f1(<subject 1>), …)``."""
    code = Code()
    parts = [code.apply(f, s) for f, s in zip(functions, subjects, strict=True)]
    return code.function(f"({''.join(part + ',' for part in parts)})")


def predicate(shape: TypeShape) -> Function:
    """Compile the test of ``shape`` into a function."""
    code = Code()
    return code.function(shape.test("v", code))


def class_name(value: Any) -> str:
    """Return the name of a value's class, with its module unless that is ``builtins``."""
    cls = type(value)
    name = cls.__qualname__
    return name if cls.__module__ == "builtins" else f"{cls.__module__}.{name}"


def another_class(value: Any, cls: type) -> str:
    """Return why ``value`` is not an instance of ``cls``.

    A different class may have the same name.
    """
    why = f"{a_class(value)}, not {cls.__qualname__}"
    if type(value).__qualname__ != cls.__qualname__:
        return why
    return (
        f"{why}. There are two classes of this name: the code that defines it ran twice, as a cell "
        "of a notebook does. Define it in a module, or run the rest again after it"
    )


def a_class(value: Any) -> str:
    """Return the name of a value's class with its article, for messages."""
    if value is None:
        return "None"
    name = class_name(value)
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"
