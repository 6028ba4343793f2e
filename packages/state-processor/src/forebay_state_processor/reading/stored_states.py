"""The states of a version, as their stored descriptions define them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import attrs

from forebay_engine.codecs.ordered import ordered_codec
from forebay_engine.codecs.stored_codec import stored_codec
from forebay_engine.versions.format.manifest import TTL_US, lineages_of
from forebay_engine.versions.format.timer_tables import TIMER_TABLES, TIMERS
from forebay_state_api.codecs import codec_for, describe_type
from forebay_state_api.contract.backend import TableSpec
from forebay_state_api.contract.changes import Shape
from forebay_state_api.contract.expiry import Expiry
from forebay_state_api.contract.migration import described

if TYPE_CHECKING:
    from forebay_engine.versions.format.manifest import Manifest
    from forebay_state_api.codecs import ValueCodec
    from forebay_state_api.contract.migration import Lineage


@attrs.frozen(kw_only=True)
class StateInfo:
    """One keyed state of a version."""

    name: str
    kind: str
    """``value``, ``list``, ``map``, ``sorted_map``, ``reducing`` or ``aggregating``; of the last
    the accumulators are stored."""
    type: str
    """The type of values, elements or accumulators, as text; for maps ``user key → value``."""
    ttl: timedelta | None = None
    """The time to live that was last declared; ``None`` without one, or where it is not known."""
    has_ttl: bool = False
    """Whether each value, element and entry has a time of last access."""
    spec: TableSpec = attrs.field(repr=False)
    """The table, with codecs of plain values."""

    @property
    def before(self) -> Sequence[str]:
        """The state's earlier types, oldest first.

        Values that were not rewritten after a change still have them.
        """
        earlier = map(described, self.spec.generations[:-1])
        return [type_text(one["user_key"], one["value"]) for one in earlier]

    @property
    def shape(self) -> Shape:
        """Whether a key has one value, a list or a map."""
        return self.spec.shape

    @property
    def ttl_us(self) -> int | None:
        """`ttl` in µs."""
        return None if self.ttl is None else self.ttl // timedelta(microseconds=1)

    @property
    def expiry(self) -> Expiry | None:
        """The rule by which its data expire; ``None`` without `ttl`."""
        return None if self.ttl_us is None else Expiry(self.ttl_us)


def states_of(manifests: Sequence[Manifest]) -> dict[str, StateInfo]:
    """Return the keyed states of a version by name, without the tables of timers."""
    durations: dict[str, int] = {}
    for manifest in manifests:
        durations |= manifest.metrics.get(TTL_US, {})
    return states_of_lineages(lineages_of(manifests), durations)


def states_of_lineages(
    lineages: Mapping[str, Lineage], durations: Mapping[str, int]
) -> dict[str, StateInfo]:
    """Return the keyed states among tables; ``durations`` are their times to live, in µs."""
    names = sorted(lineages.keys() - TIMER_TABLES)
    return {name: state_of(lineages[name], durations.get(name)) for name in names}


def state_of(lineage: Lineage, ttl_us: int | None) -> StateInfo:
    """Return the state of a lineage; ``ttl_us`` is its time to live, if it is known."""
    description = lineage.description
    return StateInfo(
        name=description["name"],
        kind=description["kind"],
        type=type_text(description["user_key"], description["value"]),
        ttl=None if ttl_us is None else timedelta(microseconds=ttl_us),
        has_ttl=description["ttl"],
        spec=spec_of(lineage),
    )


def type_text(user_key: Mapping[str, Any] | None, value: Mapping[str, Any]) -> str:
    """Return the type of a state's values, for maps ``user key → value``."""
    text = describe_type(value)
    return text if user_key is None else f"{describe_type(user_key)} → {text}"


def spec_of(lineage: Lineage) -> TableSpec:
    """Return the spec that reads, and writes, a stored state as plain values."""
    stored = lineage.description
    what = f"state {stored['name']!r}"
    user_key = None
    if stored["user_key"] is not None:
        user_key = stored_codec(stored["user_key"], what=f"user key of {what}")
        if stored.get("ordered"):
            user_key = ordered_codec(user_key)
    return TableSpec(
        name=stored["name"],
        shape=Shape.of(stored),
        kind=stored["kind"],
        key=stored_codec(stored["key"], what="the key"),
        value=stored_codec(stored["value"], what=what),
        user_key=user_key,
        ordered=stored.get("ordered", False),
        ttl=stored["ttl"],
        generations=lineage.generations,
    )


def read_by_position(spec: TableSpec) -> TableSpec:
    """Return ``spec`` for reading only: records and lists come as tuples, as Arrow takes them."""

    def codec(one: ValueCodec) -> ValueCodec:
        return stored_codec(one.description, what=one.what, by_position=True)

    user_key = spec.user_key
    if user_key is not None and not spec.ordered:
        user_key = codec(user_key)
    return attrs.evolve(spec, key=codec(spec.key), value=codec(spec.value), user_key=user_key)


def timer_spec(manifests: Sequence[Manifest]) -> TableSpec | None:
    """Return the spec of the table of timers; ``None`` if the operator has had none."""
    return timer_spec_of(lineages_of(manifests))


def timer_spec_of(lineages: Mapping[str, Lineage]) -> TableSpec | None:
    """Return the spec of the table of timers among tables."""
    lineage = lineages.get(TIMERS)
    if lineage is None:
        return None
    return attrs.evolve(spec_of(lineage), value=codec_for(bool, what="a timer"))
