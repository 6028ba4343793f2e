"""Shapes of list, dict and tuple."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from forebay_state_api.codecs.describe import describe_type
from forebay_state_api.codecs.type_shapes import (
    Code,
    Description,
    Function,
    MisfitError,
    TypeShape,
    UnreadableError,
    a_class,
    predicate,
    tuple_function,
)


class ListShape(TypeShape):
    """``list[T]``."""

    def __init__(self, element: TypeShape) -> None:
        """Describe lists of ``element``."""
        self.description = {"type": "list", "element": element.description}
        self.classes = element.classes
        self._element = element
        self.copy = list.copy if element.copy is None else _list_of(element.copy)
        self.to_plain = None if element.to_plain is None else _list_of(element.to_plain)
        self.address = _not_a_key(self)

    @property
    def declaration(self) -> dict[str, Any]:
        """The description, with the elements' declarations."""
        return {**self.description, "element": self._element.declaration}

    def test(self, subject: str, code: Code) -> str:
        """Look at all elements."""
        return f"type({subject}) is list and {_all(self._element, subject, code)}"

    def convert(self, value: Any) -> list[Any]:
        """Return a new list."""
        if type(value) is not list:
            _refuse(self, value)
        return _parts(self._element, value)

    def reader(self, stored: Description) -> Function | None:
        """Accept lists of elements that can be read."""
        self.check_type(stored)
        element = self._element.reader(stored["element"])
        return list if element is None else _list_of(element)


class TupleOfShape(TypeShape):
    """``tuple[T, ...]``."""

    def __init__(self, element: TypeShape) -> None:
        """Describe tuples of any number of ``element``."""
        self.description = {"type": "tuple_of", "element": element.description}
        self.classes = element.classes
        self._element = element
        self.copy = _tuple_of(element.copy)
        self.to_plain = _tuple_of(element.to_plain)
        self.address = _tuple_of(element.address)
        self.original = _tuple_of(element.original)

    @property
    def declaration(self) -> dict[str, Any]:
        """The description, with the elements' declarations."""
        return {**self.description, "element": self._element.declaration}

    def test(self, subject: str, code: Code) -> str:
        """Look at all elements."""
        return f"type({subject}) is tuple and {_all(self._element, subject, code)}"

    def convert(self, value: Any) -> tuple[Any, ...]:
        """Return a tuple of the converted elements."""
        if type(value) is not tuple:
            _refuse(self, value)
        return tuple(_parts(self._element, value))

    def reader(self, stored: Description) -> Function | None:
        """Accept tuples of elements that can be read, also of a fixed length."""
        if stored["type"] == "tuple":
            readers = [self._element.reader(element) for element in stored["elements"]]
            return by_position(readers)
        self.check_type(stored)
        return _tuple_of(self._element.reader(stored["element"]))


class TupleShape(TypeShape):
    """``tuple[A, B]``: a fixed number of elements, each with its own type."""

    def __init__(self, elements: Sequence[TypeShape]) -> None:
        """Describe tuples with exactly these elements."""
        self.description = {"type": "tuple", "elements": [e.description for e in elements]}
        self.classes = frozenset[type]().union(*[element.classes for element in elements])
        self.elements = elements
        self.copy = by_position([e.copy for e in elements])
        self.to_plain = by_position([e.to_plain for e in elements])
        self.address = by_position([e.address for e in elements])
        self.original = by_position([e.original for e in elements])

    @property
    def declaration(self) -> dict[str, Any]:
        """The description, with the elements' declarations."""
        return {**self.description, "elements": [e.declaration for e in self.elements]}

    def test(self, subject: str, code: Code) -> str:
        """Look at each element."""
        tests = [e.test(f"{subject}[{i}]", code) for i, e in enumerate(self.elements)]
        return " and ".join(
            [f"type({subject}) is tuple", f"len({subject}) == {len(self.elements)}", *tests]
        )

    def convert(self, value: Any) -> tuple[Any, ...]:
        """Return a tuple of the converted elements."""
        if type(value) is not tuple:
            _refuse(self, value)
        if len(value) != len(self.elements):
            raise MisfitError("", f"a tuple of length {len(value)}, not {len(self.elements)}")
        return tuple(
            [
                _part(e, v, f"[{i}]")
                for i, (e, v) in enumerate(zip(self.elements, value, strict=True))
            ]
        )

    def reader(self, stored: Description) -> Function | None:
        """Accept tuples of as many elements, each of which can be read."""
        self.check_type(stored)
        if len(stored["elements"]) != len(self.elements):
            raise UnreadableError(
                f"{len(stored['elements'])} elements are stored, {len(self.elements)} declared"
            )
        pairs = zip(self.elements, stored["elements"], strict=True)
        return by_position([element.reader(of) for element, of in pairs])


class DictShape(TypeShape):
    """``dict[K, V]``."""

    def __init__(self, key: TypeShape, value: TypeShape) -> None:
        """Describe dicts from ``key`` to ``value``."""
        self.description = {"type": "dict", "key": key.description, "value": value.description}
        self.classes = key.classes | value.classes
        self._key = key
        self._value = value
        self.copy = _items(key.copy, value.copy) or dict.copy
        self.to_plain = _items(key.to_plain, value.to_plain)
        self.address = _not_a_key(self)

    @property
    def declaration(self) -> dict[str, Any]:
        """The description, with the declarations of keys and values."""
        return {
            **self.description,
            "key": self._key.declaration,
            "value": self._value.declaration,
        }

    def test(self, subject: str, code: Code) -> str:
        """Look at all keys and values."""
        keys = _all(self._key, subject, code)
        values = _all(self._value, f"{subject}.values()", code)
        return f"type({subject}) is dict and {keys} and {values}"

    def convert(self, value: Any) -> dict[Any, Any]:
        """Return a new dict in the same order."""
        if type(value) is not dict:
            _refuse(self, value)
        return {
            _part(self._key, k, f" key {k!r}"): _part(self._value, v, f"[{k!r}]")
            for k, v in value.items()
        }

    def reader(self, stored: Description) -> Function | None:
        """Accept dicts whose keys and values can be read."""
        self.check_type(stored)
        return _items(self._key.reader(stored["key"]), self._value.reader(stored["value"]))


def _all(element: TypeShape, subject: str, code: Code) -> str:
    if element.exact:
        return f"{code.bind(element.exact)}.issuperset(map(type, {subject}))"
    return f"all(map({code.bind(predicate(element))}, {subject}))"


def _part(shape: TypeShape, value: Any, step: str) -> Any:
    try:
        return shape.convert(value)
    except MisfitError as fault:
        raise fault.below(step) from None


def _parts(element: TypeShape, values: Iterable[Any]) -> list[Any]:
    return [_part(element, value, f"[{i}]") for i, value in enumerate(values)]


def _refuse(shape: TypeShape, value: Any) -> NoReturn:
    raise MisfitError("", f"{a_class(value)}, not {describe_type(shape.description)}")


def _not_a_key(shape: TypeShape) -> Function:
    def refuse(_: Any) -> NoReturn:
        raise TypeError(f"{describe_type(shape.description)} cannot be a key, or a part of one")

    return refuse


def _list_of(function: Function) -> Function:
    return lambda values: [function(value) for value in values]


def _tuple_of(function: Function | None) -> Function | None:
    if function is None:
        return None
    return lambda values: tuple([function(value) for value in values])


def by_position(functions: Sequence[Function | None]) -> Function | None:
    """Return a function of tuples that applies a function to each part.

    Returns ``None`` if no part needs one.
    """
    if not any(functions):
        return None
    return tuple_function(functions, [f"v[{i}]" for i in range(len(functions))])


def _items(key: Function | None, value: Function | None) -> Function | None:
    if key is None and value is None:
        return None
    code = Code()
    pair = f"{code.apply(key, 'k')}: {code.apply(value, 'x')}"
    return code.function(f"{{{pair} for k, x in v.items()}}")
