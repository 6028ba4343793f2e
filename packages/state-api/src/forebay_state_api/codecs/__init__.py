"""Codecs: how values of a declared type are checked, copied, compared and turned into bytes."""

from __future__ import annotations

from forebay_state_api.codecs.codec import Codec, ValueCodec, decoding
from forebay_state_api.codecs.describe import describe_type
from forebay_state_api.codecs.evolution import Alias, MigratedFrom
from forebay_state_api.codecs.factory import codec_for
from forebay_state_api.codecs.schema_resolution import raw_codec, resolve

__all__ = [
    "Alias",
    "Codec",
    "MigratedFrom",
    "ValueCodec",
    "codec_for",
    "decoding",
    "describe_type",
    "raw_codec",
    "resolve",
]
