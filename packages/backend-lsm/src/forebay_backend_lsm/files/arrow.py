"""Builds Arrow arrays from the buffers of numpy arrays and lists.

pyarrow's converters (``pa.array``, ``to_numpy``) import pandas if it is installed, which costs
fifty megabytes and half a second in each worker process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

POOL: Final = pa.system_memory_pool()
"""The pool that holds columns. pyarrow's default pool retains memory that several threads have
freed: merging ten million cells took 40 MB more with it."""


def binary_array(items: Sequence[bytes]) -> pa.Array:
    """Build a large binary array without nulls."""
    offsets = np.zeros(len(items) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, items), np.int64, len(items)), out=offsets[1:])
    return binary_from(offsets, pa.py_buffer(b"".join(items)))


def compute() -> Any:
    """Return Arrow's functions; importing them takes longer than reading a key."""
    import pyarrow.compute

    return pyarrow.compute


def binary_from(offsets: npt.NDArray[Any], data: pa.Buffer) -> pa.Array:
    """View 32-bit or 64-bit offsets, and the bytes that they divide, as an array."""
    kind = pa.large_binary() if offsets.itemsize > 4 else pa.binary()  # noqa: PLR2004 - bytes
    return pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(offsets), data])


def taken(array: pa.Array, positions: npt.NDArray[np.int64]) -> pa.Array:
    """Return the items of ``array`` at ``positions``."""
    found = pa.py_buffer(np.ascontiguousarray(positions, np.int64))
    indices = pa.Array.from_buffers(pa.int64(), len(positions), [None, found])
    return compute().take(array, indices, memory_pool=POOL)


def flags_of(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Convert a boolean array without nulls."""
    bits = np.frombuffer(array.buffers()[1] or b"", np.uint8)
    flags = np.unpackbits(bits, count=array.offset + len(array), bitorder="little")
    return flags[array.offset :].view(np.bool_)


def flag_array(flags: npt.NDArray[np.bool_]) -> pa.Array:
    """Build a boolean array: the inverse of `flags_of`."""
    bits = pa.py_buffer(np.packbits(flags, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(flags), [None, bits])
