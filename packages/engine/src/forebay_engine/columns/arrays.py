"""Arrow arrays from what users give for columns: arrays, series, lists and single values."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_SHOWN: Final = 100


def as_array(values: Any, what: str) -> pa.Array:
    """Return ``values`` as one Arrow array, without a copy where they are in Arrow already.

    It takes arrays of Arrow and NumPy, series of pandas and Polars, and lists; ``what`` names the
    values in errors.
    """
    try:
        return _array(values)
    except (pa.ArrowException, TypeError, ValueError) as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise TypeError(
            f"{what} takes an array of Arrow or NumPy, a series of pandas or Polars, or a list, "
            f"not {type(values).__name__} {values!r:.{_SHOWN}}: {text}"
        ) from error


def _array(values: Any) -> pa.Array:
    if isinstance(values, pa.Array):
        return _decoded(values)
    if isinstance(values, pa.ChunkedArray):
        return _decoded(_one_chunk(values))
    if isinstance(values, np.ndarray) or hasattr(values, "__arrow_array__"):
        return _whole(pa.array(values))
    if hasattr(values, "__arrow_c_stream__"):
        return _decoded(_one_chunk(pa.chunked_array(values)))
    if isinstance(values, (str, bytes, dict)) or not hasattr(values, "__len__"):
        raise TypeError("a single value has no length")
    return _whole(pa.array(values))


def _whole(array: Any) -> pa.Array:
    return _decoded(_one_chunk(array) if isinstance(array, pa.ChunkedArray) else array)


def _one_chunk(values: pa.ChunkedArray) -> pa.Array:
    combined = values.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):  # what older versions of pyarrow return
        return (
            pa.concat_arrays(combined.chunks) if combined.num_chunks else pa.nulls(0, values.type)
        )
    return combined


def _decoded(array: pa.Array) -> pa.Array:
    """Return an array without a dictionary, and text that is not in views.

    Polars has text in views, which few functions of pyarrow take.
    """
    if pa.types.is_dictionary(array.type):
        return _decoded(array.dictionary_decode())
    plain = _PLAIN.get(str(array.type))
    return array if plain is None else array.cast(plain)


_PLAIN: Final = {"string_view": pa.string(), "binary_view": pa.binary()}
"""The name of a type in views, which older versions of pyarrow do not know → the plain type."""


def of_length(values: Any, length: int, what: str, *, of: str) -> pa.Array:
    """Return ``values`` as an array; refuse another length, which ``of`` explains."""
    array = as_array(values, what)
    if len(array) != length:
        raise ValueError(f"{what}: {len(array)} values were given for {length} {of}")
    return array


def as_mask(mask: Any, what: str) -> pa.Array:
    """Return a mask of trues and falses as an Arrow array in which null counts as false."""
    array = as_array(mask, what)
    if not pa.types.is_boolean(array.type):
        raise TypeError(f"{what} takes a mask of true and false, not values of {array.type}")
    return pc.fill_null(array, False) if array.null_count else array  # noqa: FBT003 - pyarrow's


def flags(mask: pa.Array) -> Any:
    """Return a mask as a NumPy array."""
    return mask.to_numpy(zero_copy_only=False)


def numbers(array: pa.Array, what: str) -> tuple[Any, Any]:
    """Return an array's numbers as int64 or float64 of NumPy, and where they are not null.

    Nulls are 0. The second part is ``None`` if there are no nulls.
    """
    kind = array.type
    if pa.types.is_null(kind):
        return np.zeros(len(array), np.int64), np.zeros(len(array), bool)
    if pa.types.is_integer(kind):
        wide = pa.int64()
    elif pa.types.is_floating(kind):
        wide = pa.float64()
    else:
        raise TypeError(f"{what} takes whole numbers or floats, not values of {kind}; cast them")
    try:
        cast = array if kind == wide else array.cast(wide)
    except pa.ArrowInvalid as error:
        raise OverflowError(f"{what}: a number is beyond 64 bits with a sign: {error}") from error
    if not cast.null_count:
        return cast.to_numpy(), None
    return pc.fill_null(cast, 0).to_numpy(), flags(cast.is_valid())
