"""Values of a state as Arrow arrays, and as the columns of the contract.

A value of one scalar is one column; a record, struct or tuple of scalars has a column for each
field. Any other value is a Python object in an array of objects: correct, and slower.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from forebay_engine.columns.arrays import as_array, flags
from forebay_state_api.codecs import ValueCodec
from forebay_state_api.codecs.column_types import ColumnTypes
from forebay_state_api.codecs.columns import Column, Texts, first_not_utf8, objects

ARROW: Final[Mapping[str, pa.DataType]] = {
    "bool": pa.bool_(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "str": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
}
OBJECT: Final = "object"
"""The kind of a column of Python objects."""
_KIND_OF: Final = {arrow: kind for kind, arrow in ARROW.items()}


class Fields:
    """The fields of a record or tuple for many keys: ``fields["cnt"]``, or by position.

    Each is an Arrow array; for a key without a value it is null.
    """

    def __init__(self, names: Sequence[str], columns: Sequence[pa.Array]) -> None:
        """Take the names, which are empty in a tuple, and the columns."""
        self._names = tuple(names)
        self._columns = tuple(columns)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields; empty texts for those of a tuple."""
        return self._names

    @property
    def columns(self) -> tuple[pa.Array, ...]:
        """The fields, in their order."""
        return self._columns

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._columns[0])

    def __iter__(self) -> Iterator[pa.Array]:
        """Iterate over the columns, so that ``count, total = fields`` works."""
        return iter(self._columns)

    def __getitem__(self, field: str | int) -> pa.Array:
        """Return a field by its name or its position."""
        if isinstance(field, int):
            return self._columns[field]
        if field and field in self._names:
            return self._columns[self._names.index(field)]
        known = ", ".join(filter(None, self._names)) or f"0 to {len(self._columns) - 1}"
        raise KeyError(f"there is no field {field!r}; the fields are {known}")

    def __repr__(self) -> str:
        """Return the number of keys and the fields."""
        return f"Fields({len(self)} keys: {', '.join(self._names)})"


class ValueColumns:
    """The columns of one state's values, and what is a value of it."""

    def __init__(self, codec: ValueCodec, state: str) -> None:
        """``codec`` is that of the values; ``state`` is named in errors."""
        types = self._types = ColumnTypes.of(codec)
        self.kinds: Final = types.kinds
        self.names: Final = types.names
        self._nullable = types.nullable
        self.is_record: Final = types.tuples
        self.is_object: Final = not types.tuples and types.kinds == (OBJECT,)
        self.what: Final = f"state {state!r}"
        self._admit = codec.admit
        self._hand_out = codec.hand_out

    # -- reading ------------------------------------------------------------------------------

    def arrays(self, columns: Sequence[Column], present: Any) -> list[Any]:
        """Return stored columns as arrays, null where ``present`` is false; ``None`` is all."""
        return [self._array(*pair, present) for pair in zip(self.kinds, columns, strict=True)]

    def _array(self, kind: str, column: Column, present: Any) -> Any:
        if kind == OBJECT:
            return _objects(column.values, present)
        valid = column.valid
        if present is not None:
            valid = present if valid is None else valid & present
        missing = None if valid is None or valid.all() else ~valid
        if isinstance(column.values, Texts):
            return _text_array(column.values, missing, ARROW[kind])
        if kind == "date":
            return pa.array(column.values.astype(np.int32), mask=missing).view(pa.date32())
        return pa.array(column.values, mask=missing)

    def missing(self, count: int) -> list[Any]:
        """Return arrays of nulls."""
        return [
            np.full(count, None, object) if kind == OBJECT else pa.nulls(count, ARROW[kind])
            for kind in self.kinds
        ]

    def defaults(self, value: Any) -> list[Any]:
        """Return a default value as a value of each column."""
        if not self.is_record:
            return [value]
        if all(self.names):
            return [getattr(value, name) for name in self.names]
        return list(value)

    def handed_out(self, arrays: Sequence[Any]) -> Any:
        """Return the arrays of values as the function gets them."""
        if self.is_record:
            return Fields(self.names, arrays)
        (array,) = arrays
        if not self.is_object:
            return array
        if self._hand_out is not None:
            array = [None if one is None else self._hand_out(one) for one in array]
        return read_only_objects(array)

    # -- writing ------------------------------------------------------------------------------

    def given(self, values: Any, named: Mapping[str, Any], count: int, method: str) -> list[Any]:
        """Return what is given to a state for ``count`` keys, as an array of each column.

        One value for all keys is repeated. Raises `TypeError` and `ValueError` that name the state.
        """
        what = f"{method} of {self.what}"
        if not self.is_record:
            if named:
                raise TypeError(f"{what}: a value has no fields; give the values by themselves")
            return [self._column(0, values, count, what)]
        parts = self._parts(values, named, what)
        return [
            self._column(position, part, count, f"{what}, field {self._shown(position)}")
            for position, part in enumerate(parts)
        ]

    def _parts(self, values: Any, named: Mapping[str, Any], what: str) -> list[Any]:
        if named and values is not None:
            raise TypeError(f"{what}: give the fields by name, or all of them at once")
        given = named or values
        if isinstance(given, Fields):
            given = list(given.columns)
        elif isinstance(given, pa.StructArray):
            given = dict(zip([f.name for f in given.type], given.flatten(), strict=True))
        if isinstance(given, Mapping) and all(self.names):
            if set(given) != set(self.names):
                missing = [name for name in self.names if name not in given]
                unknown = [name for name in given if name not in self.names]
                raise TypeError(
                    f"{what}: the fields are {', '.join(self.names)}; missing "
                    f"{missing or 'none'}, unknown {unknown or 'none'}"
                )
            return [given[name] for name in self.names]
        if isinstance(given, (list, tuple)) and not hasattr(given, "_fields"):
            if len(given) == len(self.kinds):
                return list(given)
        elif all(self.names) and hasattr(given, self.names[0]):  # one record for all keys
            return [getattr(given, name) for name in self.names]
        names = ", ".join(filter(None, self.names))
        wanted = f"its fields {names} by name" if names else f"{len(self.kinds)} columns in a tuple"
        raise TypeError(f"{what} takes {wanted}, not {type(given).__name__} {given!r:.100}")

    def _shown(self, position: int) -> str:
        return self.names[position] or str(position)

    def _column(self, position: int, values: Any, count: int, what: str) -> Any:
        kind = self.kinds[position]
        if kind == OBJECT:
            return self._object_column(values, count, what)
        if _is_single(values):
            return self._repeated(kind, values, count, what)
        if isinstance(values, np.ndarray):
            values = values.copy()  # the function may change it before it returns
        array = as_array(values, what)
        if len(array) != count:
            raise ValueError(f"{what}: {len(array)} values were given for {count} keys")
        return _as_kind(array, kind, what)

    def _repeated(self, kind: str, value: Any, count: int, what: str) -> Any:
        try:
            one = _as_kind(pa.array([value]), kind, what)
        except pa.ArrowException as error:
            raise TypeError(f"{what} takes {kind}, not {value!r:.100}: {error}") from error
        return pa.repeat(one[0], count) if count else one.slice(0, 0)

    def _object_column(self, values: Any, count: int, what: str) -> Any:
        """Return the values as the record face admits them; ``None`` stays."""
        if isinstance(values, pa.Array):
            values = values.to_pylist()
        if isinstance(values, (list, np.ndarray)) or hasattr(values, "to_list"):
            found = values.to_list() if hasattr(values, "to_list") else list(values)
        else:
            found = [values] * count
        if len(found) != count:
            raise ValueError(f"{what}: {len(found)} values were given for {count} keys")
        return objects([None if one is None else self._admit(one) for one in found])

    def check_no_nulls(self, arrays: Sequence[Any], written: Any, method: str, row_of: Any) -> None:
        """Refuse a null where ``written`` is true, or anywhere if it is ``None``.

        ``row_of`` returns the first row of the key at a position.
        """
        for position, array in enumerate(arrays):
            if self._nullable[position] and self.is_record:
                continue
            null = _nulls(array)
            if null is None:
                continue
            wrong = null if written is None else null & written
            if wrong.any():
                row = row_of(int(np.argmax(wrong)))
                field = f", field {self._shown(position)!r}" if self.is_record else ""
                raise ValueError(
                    f"{method} of {self.what}{field}: null for the key of row {row}; nothing is "
                    "stored as null. Leave such keys out by where=, or clear_many them"
                )

    def check_text(self, arrays: Sequence[Any], written: Any, row_of: Any) -> None:
        """Refuse text that is not UTF-8, which the record face could not read."""
        for position, (kind, array) in enumerate(zip(self.kinds, arrays, strict=True)):
            if kind != "str":
                continue
            wrong = first_not_utf8(_texts(array, binary=False))
            if wrong is not None and (written is None or written[wrong]):
                field = f", field {self._shown(position)!r}" if self.is_record else ""
                raise ValueError(
                    f"put_many of {self.what}{field}: text that is not UTF-8 for the key of row "
                    f"{row_of(wrong)}; declare the state as bytes"
                )

    def in_kind(self, array: Any, what: str) -> Any:
        """Return an array of scalars in the type of the state's only column."""
        return _as_kind(array, self.kinds[0], what)

    def python_values(self, arrays: Sequence[Any], present: Any) -> list[Any]:
        """Return the stored values as the record face has them; ``None`` where there is none."""
        flat = not self.is_object
        found = self._types.values(self.stored(arrays)) if flat else list(arrays[0])
        pairs = zip(found, present.tolist(), strict=True)
        return [value if there else None for value, there in pairs]

    def of_python_values(self, values: list[Any]) -> list[Any]:
        """Return admitted values of the record face as arrays; null for ``None``.

        Raises `OverflowError` for an int beyond 64 bits.
        """
        if self.is_object:
            return [objects(values)]
        present = np.array([value is not None for value in values], bool)
        columns = self._types.columns([value for value in values if value is not None])
        if columns is None:
            raise OverflowError(
                f"{self.what}: a value is beyond 64 bits, or text that is not UTF-8; a function of "
                "one row stores such values, and columns cannot"
            )
        return self.arrays([column.spread(present) for column in columns], present)

    def copied(self, value: Any) -> Any:
        """Return a stored value in a form that the function may change."""
        return value if self._hand_out is None else self._hand_out(value)

    def stored(self, arrays: Sequence[Any]) -> tuple[Column, ...]:
        """Return arrays of values as the columns of the contract, which are copies."""
        return tuple(_stored(*pair) for pair in zip(self.kinds, arrays, strict=True))


def read_only_objects(values: Sequence[Any]) -> Any:
    """Return an array of Python values that cannot be changed."""
    array = objects(values)
    array.flags.writeable = False
    return array


def chosen(mask: Any, new: Any, old: Any) -> Any:
    """Return ``new`` where a mask of NumPy is true, and ``old`` elsewhere."""
    if isinstance(new, np.ndarray):
        return np.where(mask, new, old)
    return pc.if_else(pa.array(mask), new, old)


def filled(array: Any, missing: Any, default: Any) -> Any:
    """Return an array with ``default`` where ``missing`` is true."""
    if default is None or not missing.any():
        return array
    if isinstance(array, np.ndarray):
        array = array.copy()
        array[missing] = objects([default] * int(missing.sum()))
        return array
    return pc.if_else(pa.array(missing), pa.scalar(default, array.type), array)


def _is_single(values: Any) -> bool:
    """Return whether one value is given, for all keys."""
    return isinstance(values, (str, bytes)) or (
        not hasattr(values, "__len__") and not hasattr(values, "__arrow_c_stream__")
    )


def _as_kind(array: pa.Array, kind: str, what: str) -> pa.Array:
    """Return an array in the type of a column; refuse what the record face refuses."""
    wanted, given = ARROW[kind], array.type
    if given == wanted:
        return array
    fits = {
        "bool": pa.types.is_boolean,
        "int64": pa.types.is_integer,
        "float64": lambda one: pa.types.is_floating(one) or pa.types.is_integer(one),
        "str": lambda one: pa.types.is_large_string(one) or str(one) == "string_view",
        "bytes": lambda one: pa.types.is_large_binary(one) or str(one) == "binary_view",
        "date": pa.types.is_date,
    }[kind]
    if not fits(given) and not pa.types.is_null(given):
        raise TypeError(f"{what} takes {kind}, not values of {given}; cast them")
    try:
        return array.cast(wanted)
    except pa.ArrowInvalid as error:
        raise OverflowError(f"{what}: {str(error).splitlines()[0]}") from error


def _objects(values: Any, present: Any) -> Any:
    if present is None:
        return values
    found = values.copy()
    found[~present] = None
    return found


def _nulls(array: Any) -> Any:
    """Return where an array is null, as NumPy; ``None`` if it is nowhere."""
    if isinstance(array, np.ndarray):
        return np.fromiter((one is None for one in array), bool, len(array))
    return flags(array.is_null()) if array.null_count else None


def _text_array(texts: Texts, missing: Any, kind: pa.DataType) -> pa.Array:
    offsets, data = np.ascontiguousarray(texts.offsets), np.ascontiguousarray(texts.data)
    large = offsets.dtype == np.int64
    if large:
        kind = pa.large_string() if pa.types.is_string(kind) else pa.large_binary()
    bits = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    buffers = [bits, pa.py_buffer(offsets), pa.py_buffer(data)]
    array = pa.Array.from_buffers(kind, len(offsets) - 1, buffers)
    if large:
        return array.cast(pa.string() if pa.types.is_large_string(kind) else pa.binary())
    return array


def _texts(array: pa.Array, *, binary: bool) -> Texts:
    """Return an array of text or bytes as the contract has it, without a copy."""
    _, offsets, data = array.buffers()
    starts = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    bytes_ = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return Texts(starts, bytes_, binary=binary)


def _stored(kind: str, array: Any) -> Column:
    if kind == OBJECT:
        return Column(array)
    valid = flags(array.is_valid()) if array.null_count else None
    if kind in ("str", "bytes"):
        return Column(_texts(array, binary=kind == "bytes"), valid)
    if kind == "bool":
        plain = pc.fill_null(array, False) if array.null_count else array  # noqa: FBT003
        return Column(flags(plain), valid)
    if kind == "date":
        array = array.view(pa.int32()).cast(pa.int64())
    return Column(
        pc.fill_null(array, 0).to_numpy() if array.null_count else array.to_numpy(), valid
    )


def kind_of(array: pa.Array) -> str | None:
    """Return the kind of a canonical column; ``None`` if it has none but that of objects."""
    return _KIND_OF.get(array.type)


def stored_column(array: pa.Array) -> Column:
    """Return a column of one of the kinds as the contract has it."""
    return _stored(_KIND_OF[array.type], array)
