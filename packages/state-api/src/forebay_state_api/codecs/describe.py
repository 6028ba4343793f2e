"""Descriptions of types as text, for messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final


def describe_type(description: Mapping[str, Any]) -> str:
    """Return the type in ``description`` as a person would write it.

    For example ``tuple[int, str]``, ``Account(id: int, name: str = ...)`` or
    ``struct<n: int | None>``. Unknown descriptions give their ``type``.
    """
    kind = description["type"]
    render = _RENDER.get(kind)
    if render is None:
        return str(_SIMPLE.get(kind, kind))
    return render(description)


def _tuple(description: Mapping[str, Any]) -> str:
    elements = [describe_type(element) for element in description["elements"]]
    return f"tuple[{', '.join(elements) or '()'}]"


def _dict(description: Mapping[str, Any]) -> str:
    return f"dict[{describe_type(description['key'])}, {describe_type(description['value'])}]"


def _record(description: Mapping[str, Any]) -> str:
    is_struct = description["kind"] == "struct"
    fields = ", ".join(
        [_field(field, show_default=not is_struct) for field in description["fields"]]
    )
    return f"struct<{fields}>" if is_struct else f"{description['name']}({fields})"


def _field(field: Mapping[str, Any], *, show_default: bool) -> str:
    default = " = ..." if show_default and field["default"] else ""
    return f"{field['name']}: {describe_type(field['type'])}{default}"


def _enum(description: Mapping[str, Any]) -> str:
    return f"{description['name']}({' | '.join(description['members'])})"


def _codec(description: Mapping[str, Any]) -> str:
    return f"{description['text']} (codec {description['id']}, version {description['version']})"


_SIMPLE: Final = {"any": "Any", "none": "None", "decimal": "Decimal", "uuid": "UUID"}

_RENDER: Final[dict[str, Callable[[Mapping[str, Any]], str]]] = {
    "list": lambda d: f"list[{describe_type(d['element'])}]",
    "tuple": _tuple,
    "tuple_of": lambda d: f"tuple[{describe_type(d['element'])}, ...]",
    "dict": _dict,
    "optional": lambda d: f"{describe_type(d['of'])} | None",
    "record": _record,
    "enum": _enum,
    "codec": _codec,
}
