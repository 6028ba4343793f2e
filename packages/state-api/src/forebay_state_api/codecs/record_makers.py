"""Generated code that reads and builds records: tuples by position, objects field by field."""

from __future__ import annotations

import abc
import types
from collections.abc import Sequence
from inspect import getattr_static

import attrs

from forebay_state_api.codecs.type_shapes import Code, Function


class Maker(abc.ABC):
    """Generates the expressions that read the fields of one class, and the code that builds one."""

    @abc.abstractmethod
    def part(self, subject: str, position: int) -> str:
        """Return an expression for one field of ``subject``."""

    @abc.abstractmethod
    def build(self, code: Code, parts: Sequence[str]) -> Function:
        """Compile a function of ``v`` that builds a record from expressions of all its fields.

        In an expression ``o`` is the partly built record, or ``None`` for a tuple.
        """

    def rebuild(self, functions: Sequence[Function | None], subjects: Sequence[str]) -> Function:
        """Compile a function of ``v`` that builds a record from ``functions`` of ``subjects``."""
        code = Code()
        pairs = zip(functions, subjects, strict=True)
        return self.build(code, [code.apply(f, subject) for f, subject in pairs])


class TupleMaker(Maker):
    """Builds instances of subclasses of tuple."""

    def __init__(self, cls: type) -> None:
        """Make instances of ``cls``, without calling its ``__new__``."""
        self._cls = cls

    def part(self, subject: str, position: int) -> str:
        """Read by position."""
        return f"{subject}[{position}]"

    def build(self, code: Code, parts: Sequence[str]) -> Function:
        """Build with ``tuple.__new__``."""
        code.names["o"] = None
        new, cls = code.bind(tuple.__new__), code.bind(self._cls)
        return code.function(f"{new}({cls}, ({''.join(part + ',' for part in parts)}))")


class ObjectMaker(Maker):
    """Builds objects with fields in slots or in their ``__dict__``.

    Fields are set directly, without ``__init__``, converters and validators, so that values come
    out as they went in, whatever those do. If the class has a hook that runs after ``__init__``,
    the hook is called, for attributes that are not fields; then the fields are set a second time in
    case the hook changed them.
    """

    def __init__(self, cls: type, names: Sequence[str], hook: str | None) -> None:
        """Make instances of ``cls``; ``hook`` is the name of the method to call, if any."""
        self._cls = cls
        self._names = names
        self._hook = hook

    def part(self, subject: str, position: int) -> str:
        """Read by name."""
        return f"{subject}.{self._names[position]}"

    def build(self, code: Code, parts: Sequence[str]) -> Function:
        """Build with ``object.__new__``."""
        locals_ = [f"f{i}" for i in range(len(parts))]
        lines = [f"o = {code.bind(object.__new__)}({code.bind(self._cls)})"]
        if _caches_hash(self._cls):
            lines.append(f"{code.bind(object.__setattr__)}(o, '_attrs_cached_hash', None)")
        for local, part, name in zip(locals_, parts, self._names, strict=True):
            lines += [f"{local} = {part}", self._setting(code, name, local)]
        if self._hook is not None:
            lines.append(f"o.{self._hook}()")
            lines += [self._setting(code, n, f) for n, f in zip(self._names, locals_, strict=True)]
        return code.block([*lines, "return o"])

    def _setting(self, code: Code, name: str, value: str) -> str:
        descriptor = getattr_static(self._cls, name, None)
        if isinstance(descriptor, types.MemberDescriptorType):
            return f"{code.bind(descriptor.__set__)}(o, {value})"
        return f"o.__dict__[{name!r}] = {value}"


@attrs.frozen
class _Frozen:
    """Has the ``__setattr__`` that attrs gives to frozen classes."""


def is_frozen_attrs(cls: type) -> bool:
    """Return whether attrs made ``cls`` frozen."""
    made = vars(_Frozen)["__setattr__"]
    return getattr(cls, "__setattr__", None) is made


def _caches_hash(cls: type) -> bool:
    """Return whether attrs made a ``__hash__`` that caches its result in the object."""
    code = getattr(cls.__hash__, "__code__", None)
    return isinstance(code, types.CodeType) and "_attrs_cached_hash" in code.co_names
