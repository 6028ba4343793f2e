"""`Codec`, for users' own types, and `ValueCodec`, the compiled form of every declared type."""

from __future__ import annotations

import abc
import contextlib
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import attrs

from forebay_state_api.codecs.describe import describe_type
from forebay_state_api.codecs.plain import SELF_DESCRIBING, ByteLayout
from forebay_state_api.codecs.type_shapes import (
    Code,
    Description,
    Function,
    MisfitError,
    TypeShape,
    UnreadableError,
    class_name,
)
from forebay_state_api.errors import CorruptStateError, ForebayError, StateMigrationError
from forebay_state_api.not_awaited import not_awaited_error

T = TypeVar("T")


class Codec(abc.ABC, Generic[T]):
    """Encodes values of your own class as bytes: pass an instance as a ``type_info``.

    Instances travel to the workers, so they must be picklable by cloudpickle, and may be called
    on several threads at once.
    """

    id: ClassVar[str]
    """Identity, stored with the state. A codec never reads state written under another id."""
    version: ClassVar[int]
    """Version of the bytes that `encode` writes; stored with the state."""
    immutable: ClassVar[bool] = False
    """Whether values are immutable, so that they need no copy when they are written or read.
    If not, every write and every read of a state costs an `encode` and a `decode`."""

    @abc.abstractmethod
    def encode(self, value: T) -> bytes:
        """Return the bytes of ``value``; equal values must give equal bytes.

        Raise `TypeError` for a value of another type; the user sees it at the write.
        """

    @abc.abstractmethod
    def decode(self, data: bytes) -> T:
        """Return the value that `encode`, of this or a compatible version, turned into ``data``."""

    @abc.abstractmethod
    def describe(self) -> str:
        """Return the type as text, for messages and `compatible_with`; stored with the state."""

    @abc.abstractmethod
    def compatible_with(self, stored_description: str) -> bool:
        """Return whether `decode` can read data of a codec with this id and that description.

        Called with the description of the previous version. `decode` then also gets data that the
        previous version could read.
        """


class CodecShape(TypeShape):
    """A value that a user's codec encodes."""

    def __init__(self, codec: Codec[Any]) -> None:
        """Describe the values of ``codec``."""
        text = codec.describe()
        self.description = {
            "type": "codec",
            "id": codec.id,
            "version": codec.version,
            "text": text,
        }
        self.classes = frozenset({type(codec)})
        self._codec = codec
        self.to_plain = self._encode
        self.address = self._encode
        self.original = codec.decode
        if not codec.immutable:
            self.copy = self._through_bytes

    def test(self, subject: str, code: Code) -> str:  # noqa: ARG002 - only the codec knows
        """Pass no value: only the codec knows its values."""
        return "False"

    def convert(self, value: Any) -> Any:
        """Encode, and decode unless values are immutable."""
        if not self._codec.immutable:
            return self._through_bytes(value)
        self._encode(value)
        return value

    def reader(self, stored: Description) -> Function:
        """Accept data that the codec can read."""
        if stored["type"] != "codec" or stored["id"] != self._codec.id:
            raise UnreadableError(f"codec {self._codec.id} cannot read {describe_type(stored)}")
        if stored != self.description and not self._codec.compatible_with(stored["text"]):
            raise UnreadableError(
                f"codec {self._codec.id} reports that it cannot read {describe_type(stored)}"
            )
        return self._codec.decode

    def _encode(self, value: Any) -> bytes:
        data = self._codec.encode(value)
        if type(data) is not bytes:
            raise TypeError(
                f"{class_name(self._codec)}.encode must return bytes, not {class_name(data)}"
            )
        return data

    def _through_bytes(self, value: Any) -> Any:
        return self._codec.decode(self._encode(value))


class UndecodedError(CorruptStateError):
    """Bytes that no codec of the stored type has written.

    The reader adds where they were; see `decoding`.
    """

    def __init__(self, message: str, position: int | None) -> None:
        """``position`` is the index of the first unreadable value, if only single values are."""
        super().__init__(message)
        self.position = position


@contextlib.contextmanager
def decoding(where: Callable[[int | None], str]) -> Iterator[None]:
    """Turn errors of decoding into a `CorruptStateError` whose message begins with ``where``.

    ``where`` gets the position of the value that cannot be read, or ``None`` if it is unknown.
    """
    try:
        yield
    except UndecodedError as error:
        raise CorruptStateError(f"{where(error.position)}: {error}") from error
    except (ForebayError, MemoryError):
        raise
    except Exception as error:
        what = f"the stored data are damaged: {type(error).__name__}: {error}"
        raise CorruptStateError(f"{where(None)}: {what}") from error


@attrs.frozen(eq=False, kw_only=True)
class ValueCodec:
    """All operations of state objects and backends on values of one declared type.

    Stateless after construction; may be used on several threads at once.
    """

    what: str = ""
    """The thing that the type was declared for, named in errors, like "state 'totals'"."""
    description: Mapping[str, Any]
    """The type as plain data, stored with the state."""
    classes: frozenset[type]
    """The users' classes that values consist of, and the classes of their codecs. Values unpacked
    by a codec of equal description can be reused by this one only if these are the same."""
    admit: Function
    """Value → value to store, which shares no mutable object with the argument.
    Raises `TypeError` that names `what`, the declared type and the part that does not fit.
    Immutable values are returned as they are; an int where a float is declared is converted."""
    hand_out: Function | None
    """Stored value → value for the user, sharing no mutable object; ``None`` means that values are
    immutable, so stored values can be returned as they are."""
    to_plain: Function | None
    """Value → the object that msgpack writes; ``None`` if it is the value itself."""
    address: Function | None
    """Value → a hashable substitute, equal for values that are the same key; ``None`` means the
    value. Within a type this is Python's equality, except that NaN equals NaN; without a declared
    type 1, True and 1.0 are three keys. Raises `TypeError` for a value that cannot be a key."""
    original: Function | None
    """Address → value; ``None`` means the address itself. It may return a different one of several
    equal values: 0.0 for -0.0, a datetime in UTC for one in another zone."""
    rank: Function | None
    """Address → what Python compares in its place; ``None`` means the address itself. Of ordered
    keys, whose packed bytes (`pack_one`) are in the same order."""
    shape: TypeShape
    """The type, for codecs that are made from this one."""
    _layout: ByteLayout
    _stored_layout: ByteLayout
    """ByteLayout of the data that `unpack` reads."""
    _read: Function | None

    @classmethod
    def of(cls, shape: TypeShape, what: str = "") -> ValueCodec:
        """Compile ``shape``, declared for ``what``."""
        return cls(
            what=what,
            description=shape.description,
            classes=shape.classes,
            admit=_admission(shape, what),
            hand_out=shape.copy,
            to_plain=None if shape.layout is SELF_DESCRIBING else shape.to_plain,
            address=shape.address,
            original=shape.original,
            rank=shape.rank,
            shape=shape,
            layout=shape.layout,
            stored_layout=shape.layout,
            read=shape.reader(shape.description),
        )

    def reading(self, stored: Mapping[str, Any], through: Function | None = None) -> ValueCodec:
        """Return a copy of this codec that unpacks data packed under ``stored``.

        ``through`` first turns the packed data into plain data of that type. Raises
        `UnreadableError`; `resolve` is the public function.
        """
        read = self.shape.reader(stored)
        if through is not None:
            read = _after(through, read)
        return attrs.evolve(self, read=read, stored_layout=self.shape.layout_of(stored))

    @property
    def declaration(self) -> Mapping[str, Any]:
        """`description` plus the type's rules for older data, as plain data."""
        return self.shape.declaration

    def pack(self, values: list[Any]) -> bytes:
        """Return the bytes of a whole list of values."""
        plain = self.to_plain
        return self._layout.dump_column(values if plain is None else [plain(v) for v in values])

    def unpack(self, data: bytes | memoryview) -> list[Any]:
        """Return the list that `pack` turned into ``data``.

        Raises `CorruptStateError` for bytes that `pack` did not write, and `StateMigrationError`
        for an enumeration member that no longer exists.
        """
        return self._all(partial(self._stored_layout.load_column, data))

    def pack_one(self, value: Any) -> bytes:
        """Return the bytes of one value; equal bytes for equal originals of an `address`."""
        return self._layout.dump(value if self.to_plain is None else self.to_plain(value))

    def unpack_one(self, data: bytes | memoryview) -> Any:
        """Return the value that `pack_one` turned into ``data``; errors as for `unpack`."""
        return self._all(lambda: [self._stored_layout.load(data)])[0]

    def pack_each(self, values: list[Any]) -> list[bytes]:
        """Return `pack_one` of each value; several times faster than single calls."""
        plain = self.to_plain
        return self._layout.dump_each(values if plain is None else [plain(v) for v in values])

    def unpack_each(self, data: bytes, lengths: Sequence[int]) -> list[Any]:
        """Return the values whose `pack_one` bytes, of these lengths, are joined in ``data``.

        Errors as for `unpack`.
        """
        try:
            return self._all(partial(self._stored_layout.load_each, data, lengths))
        except UndecodedError as error:
            if error.position is None:
                error.position = self._first_undecoded(data, lengths)
            raise

    def _all(self, load: Callable[[], Any]) -> list[Any]:
        """Convert the result of `load` to values."""
        try:
            values = _listed(load())
            return list(values) if self._read is None else list(map(self._read, values))
        except CorruptStateError as error:
            raise UndecodedError(f"{self._of_what()}{error}", None) from error
        except StateMigrationError as error:
            raise StateMigrationError(f"{self._of_what()}{error}") from error.__cause__ or error
        except (ForebayError, MemoryError):
            raise
        except Exception as error:
            declared = describe_type(self.description)
            raise UndecodedError(
                f"{self._of_what()}what is stored is not {declared}: "
                f"{type(error).__name__}: {error}",
                self._first_unreadable(load),
            ) from error

    def _of_what(self) -> str:
        return f"{self.what}: " if self.what else ""

    def _first_unreadable(self, load: Callable[[], Any]) -> int | None:
        """Return the position of the first unreadable value, after a first read has failed."""
        with contextlib.suppress(Exception):
            for position, value in enumerate(load()):
                try:
                    if self._read is not None:
                        self._read(value)
                except Exception:  # noqa: BLE001 - this is the value to find
                    return position
        return None

    def _first_undecoded(self, data: bytes, lengths: Sequence[int]) -> int | None:
        end = 0
        for position, length in enumerate(lengths):
            start, end = end, end + int(length)
            try:
                self.unpack_one(data[start:end])
            except UndecodedError:
                return position
        return None

    def __repr__(self) -> str:
        """Show the type."""
        return f"<ValueCodec {describe_type(self.description)}>"


def _listed(values: Any) -> Any:
    if not isinstance(values, list | tuple):
        raise TypeError(f"{class_name(values)} instead of a list")
    return values


def _after(first: Function, then: Function | None) -> Function:
    return first if then is None else lambda value: then(first(value))


def _admission(shape: TypeShape, what: str) -> Function:
    prefix = f"{what}: " if what else ""

    def convert(value: Any) -> Any:
        if hasattr(type(value), "__await__"):
            raise not_awaited_error(type(value).__name__)
        try:
            return shape.convert(value)
        except MisfitError as fault:
            where = f"{fault.path.strip()} is " if fault.path else ""
            raise TypeError(
                f"{prefix}expected {describe_type(shape.description)}, got {reprlib.repr(value)}: "
                f"{where}{fault.problem}"
            ) from None
        except TypeError as error:  # raised by a user's codec
            raise TypeError(f"{prefix}{error}") from error

    code = Code()
    test = shape.test("v", code)
    return code.function(f"{shape.taken('v', code)} if {test} else {code.bind(convert)}(v)")
