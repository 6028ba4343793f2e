"""The type of an operator's keys, as plain data: what a codec describes, and the kinds of times.

Codecs have one type for times, but a time without a zone is another key than the same time in UTC.
In tables both are instants in UTC, so a reader or an import that is given a time makes the kind of
it that the key column has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import attrs

from forebay_engine.codecs.stored_codec import stored_codec
from forebay_engine.versions.format.keyed_by import KeyColumn, KeyedBy
from forebay_engine.versions.format.manifest import lineages_of
from forebay_engine.versions.format.timer_tables import TIMER_TABLES, TIMERS
from forebay_state_api.codecs import ValueCodec, codec_for, describe_type
from forebay_state_api.codecs.spark_types import json_of_ddl
from forebay_state_api.keys import in_kinds

if TYPE_CHECKING:
    from forebay_engine.versions.format.manifest import Manifest
    from forebay_state_api.contract.migration import Lineage

_TIMES: Final = ("timestamp", "timestamp_ntz")


@attrs.frozen
class KeyType:
    """The type of an operator's keys, which can be sent to other processes."""

    description: Mapping[str, Any]
    """The type as the codec of keys describes it."""
    columns: Sequence[KeyColumn] = ()
    """The known key columns; empty if they are unknown."""

    @classmethod
    def of(cls, declared: Any) -> Self:
        """Return the type of keys of a Spark type, or of columns: ``user string, day date``.

        It may also be a Python type, or such a `KeyType`.
        """
        if isinstance(declared, cls):
            return declared
        description: Mapping[str, Any] = codec_for(declared, what="the key").description
        columns = _columns(declared) if isinstance(declared, str) else []
        if description["type"] != "record":
            return cls(description, columns)
        parts = [field["type"] for field in description["fields"]]
        bare = [one["of"] if one["type"] == "optional" else one for one in parts]
        whole = bare[0] if len(bare) == 1 else {"type": "tuple", "elements": bare}
        return cls(whole, columns)

    @property
    def kinds(self) -> list[str]:
        """The kind of each key column; empty where it is not known."""
        return [column.kind for column in self.columns]

    def codec(self, what: str = "the key") -> ValueCodec:
        """Return the codec of keys, which admits times as the key columns have them."""
        codec = stored_codec(self.description, what=what)
        if not {*self.kinds} & {*_TIMES}:
            return codec
        admit, kinds = codec.admit, self.kinds
        return attrs.evolve(codec, admit=lambda key: in_kinds(admit(key), kinds))

    def nameless(self) -> list[list[list[str]]]:
        """Return `Manifest.keyed_by` of an import: the columns of its tables have other names."""
        return [[["", kind] for kind in self.kinds]] if any(self.kinds) else []


def key_type_of(manifests: Sequence[Manifest]) -> KeyType | None:
    """Return the type of the operator's keys; ``None`` if nothing keyed is stored."""
    description = _key_of(lineages_of(manifests))
    if description is None:
        return None
    known = (KeyedBy.of(manifest).inputs for manifest in manifests)
    inputs = next(filter(None, known), [[]])
    return KeyType(description, inputs[0])


def key_type_text(manifests: Sequence[Manifest]) -> str | None:
    """Return the type of the operator's keys as text; ``None`` if nothing keyed is stored."""
    key = key_type_of(manifests)
    return None if key is None else describe_type(key.description)


def _key_of(lineages: Mapping[str, Lineage]) -> Mapping[str, Any] | None:
    for name, lineage in lineages.items():
        if name not in TIMER_TABLES:
            found: Mapping[str, Any] = lineage.description["key"]
            return found
    timers = lineages.get(TIMERS)
    if timers is None:
        return None
    of_timer: Mapping[str, Any] = timers.description["user_key"]["elements"][1]
    return of_timer


def _columns(ddl: str) -> list[KeyColumn]:
    json = json_of_ddl(ddl)
    is_struct = isinstance(json, dict) and json["type"] == "struct"
    fields = json["fields"] if is_struct else [{"name": "", "type": json}]
    return [KeyColumn(field["name"], _kind(field["type"])) for field in fields]


def _kind(json: Any) -> str:
    return json if json in _TIMES else ""
