"""The shapes of described types, for values without the classes of the job that wrote them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from forebay_state_api.codecs.containers import DictShape, ListShape, TupleOfShape, TupleShape
from forebay_state_api.codecs.scalars import SCALAR_NAMES, OptionalShape, ScalarShape, scalar_shape
from forebay_state_api.codecs.type_shapes import Description, TypeShape
from forebay_state_api.codecs.untyped import AnyShape

Part = Callable[[Description], TypeShape]
"""Makes the shape of a part of a type."""
Shapes = Mapping[str, Callable[[Description, Part], TypeShape]]
"""``type`` of a description → the function that makes its shape."""


class ScalarOfClass(ScalarShape):
    """A scalar that is stored for a value of one of the job's classes, of another description."""

    def __init__(self, cls: type, description: Description) -> None:
        """Describe values of ``description``, stored as scalars of ``cls``."""
        super().__init__(cls)
        self.description = dict(description)


def _scalar(one: Description, _: Part) -> TypeShape:
    return scalar_shape(_SCALARS[one["type"]])


_SCALARS: Final = {name: cls for cls, name in SCALAR_NAMES.items()}

SHAPES: Final[Shapes] = {
    **dict.fromkeys(_SCALARS, _scalar),
    "any": lambda _, __: AnyShape(),
    "optional": lambda one, part: OptionalShape(part(one["of"])),
    "list": lambda one, part: ListShape(part(one["element"])),
    "tuple": lambda one, part: TupleShape([part(element) for element in one["elements"]]),
    "tuple_of": lambda one, part: TupleOfShape(part(one["element"])),
    "dict": lambda one, part: DictShape(part(one["key"]), part(one["value"])),
    # The name of a member; flags have names like ``A|B``.
    "enum": lambda one, _: ScalarOfClass(str, one),
}
"""All types but records, and values of a job's own `Codec`, which each reader takes differently."""
