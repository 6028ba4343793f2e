"""Copies of a function in the process that pickled it, where its classes exist already."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from enum import EnumMeta
from functools import partial
from typing import Any

_CLASS_SETTER = "_class_setstate"
"""cloudpickle's function that sets the attributes of a class, once it is made or found."""


def fresh_copy(data: bytes) -> Any:
    """Unpickle what cloudpickle made in this process."""
    return _Unpickler(io.BytesIO(data)).load()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        found = super().find_class(module_name, global_name)
        return partial(_set_state, found) if global_name == _CLASS_SETTER else found


def _set_state(setter: Callable[[Any, Any], Any], made: Any, state: Any) -> Any:
    """Set the attributes of a class, without the names of an enumeration.

    An enumeration of the script or notebook has its second names and named combinations already,
    and refuses to get them again; in a worker it is made without them.
    """
    if isinstance(made, EnumMeta):
        attributes, slots = state
        kept = {name: one for name, one in attributes.items() if name not in made.__members__}
        state = kept, slots
    return setter(made, state)
