"""`codec_for`: make the `ValueCodec` for a descriptor's ``type_info``."""

from __future__ import annotations

from typing import Any

from forebay_state_api.codecs.annotations import whole
from forebay_state_api.codecs.codec import ValueCodec
from forebay_state_api.codecs.type_shapes import UnsupportedTypeError
from forebay_state_api.errors import ConfigurationError


def codec_for(type_info: Any, *, what: str) -> ValueCodec:
    """Return the codec of a type.

    ``type_info`` is a Python type or annotation, a Spark DDL string or ``DataType``, a `Codec`, or
    ``None`` for self-describing values of the plain kinds. ``what`` names, in errors, the thing
    that the type was declared for, like "state 'totals'"; errors about values repeat it. Raises
    `ConfigurationError` for any other type: nothing is ever pickled.
    """
    try:
        return ValueCodec.of(whole(type_info), what)
    except UnsupportedTypeError as error:
        raise ConfigurationError(
            f"{what}: {error}. Use a plain type, an attrs class, a dataclass, a NamedTuple, an "
            "Enum, a Spark type, or a Codec of your own (forebay_state_api.codecs.Codec)"
        ) from error
    except RecursionError:
        raise ConfigurationError(f"{what}: its type is nested too deeply") from None
