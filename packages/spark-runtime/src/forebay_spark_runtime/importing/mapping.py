"""Match the variables of a ``transformWithState`` query with the states that a function declares.

All faults are collected, so that one error names everything that has to be changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import attrs

from forebay_spark_runtime.importing.stored_values import misfit
from forebay_state_api.errors import ConfigurationError

if TYPE_CHECKING:
    from forebay_spark_runtime.importing.tws_query import TwsQuery, Variable
    from forebay_state_processor.importing.declared_states import DeclaredStates
    from forebay_state_processor.reading.stored_states import StateInfo

_MICROSECOND = timedelta(microseconds=1)


@attrs.frozen(kw_only=True)
class MappingChoices:
    """The caller's choices about states, by the names of Spark's variables."""

    states: Mapping[str, str] = attrs.field(factory=dict)
    """Variable → the state that takes it, where their names differ."""
    ttl: Mapping[str, timedelta] = attrs.field(factory=dict)
    """Variable → its time to live on Spark, where it is not the one that the function declares."""
    without: Collection[str] = ()
    """The variables that are left behind."""
    without_timers: bool = False
    """Whether the timers are left behind."""


@attrs.frozen(kw_only=True)
class TakenState:
    """A variable, and the state that takes it."""

    variable: str
    state: str
    ttl_us: int | None
    """The time to live on Spark: a value was written this long before it expires."""


def taken_states(
    query: TwsQuery, declared: DeclaredStates, wanted: MappingChoices
) -> Sequence[TakenState]:
    """Return which state takes which variable.

    Raises `ConfigurationError` that lists every variable that no state can take.
    """
    infos = declared.infos()
    faults = [*_unknown(query, wanted)]
    taken: list[TakenState] = []
    for name, variable in query.variables.items():
        if name in wanted.without:
            continue
        state = wanted.states.get(name, name)
        if state in {one.state for one in taken}:
            faults.append(f"{name}: the state {state!r} takes another variable already")
        elif (fault := _fault(variable, state, infos, wanted)) is not None:
            faults.append(f"{name}: {fault}")
        else:
            taken.append(
                TakenState(variable=name, state=state, ttl_us=_ttl_us(name, infos[state], wanted))
            )
    faults += _timer_faults(query, declared, wanted)
    if faults:
        raise ConfigurationError(
            f"operator {declared.uid!r} cannot take the state over; nothing was written:\n- "
            + "\n- ".join(faults)
        )
    return taken


def _unknown(query: TwsQuery, wanted: MappingChoices) -> Iterator[str]:
    named = {
        "the mapping": wanted.states,
        "the times to live": wanted.ttl,
        "what is left out": wanted.without,
    }
    known = ", ".join(sorted(query.variables)) or "none"
    for what, names in named.items():
        for name in sorted(set(names) - query.variables.keys()):
            yield f"{name}: {what} names it, and the query's variables are {known}"
    for name in sorted(wanted.ttl.keys() & query.variables.keys()):
        if not query.variables[name].has_ttl:
            yield f"{name}: a time to live was given, and the variable has none"


def _fault(
    variable: Variable, state: str, infos: Mapping[str, StateInfo], wanted: MappingChoices
) -> str | None:
    info = infos.get(state)
    if info is None:
        there = ", ".join(sorted(infos)) or "none"
        return (
            f"the function does not declare {state!r}; its states are {there}. Map the variable "
            f"to one of them, or leave it out"
        )
    if variable.shape is not info.shape:
        return (
            f"it is a {variable.shape.value} on Spark, and {state!r} is a {info.kind} state, which "
            f"is stored as a {info.shape.value}"
        )
    return _ttl_fault(variable, info, wanted) or _type_fault(variable, info)


def _ttl_fault(variable: Variable, info: StateInfo, wanted: MappingChoices) -> str | None:
    if variable.has_ttl and not info.has_ttl:
        return (
            "it has a TTL on Spark: declare one (ttl=StateTtlConfig(…)); a later start may remove "
            "it with switch_ttl=True"
        )
    if info.has_ttl and not variable.has_ttl:
        return (
            "it has no TTL on Spark, so nothing says when its values were written: import it "
            "without a TTL; a later start may add one with switch_ttl=True"
        )
    given = wanted.ttl.get(variable.name)
    if given is not None and given <= timedelta(0):
        return f"its time to live is {given}: it must be longer than 0"
    return None


def _type_fault(variable: Variable, info: StateInfo) -> str | None:
    pairs: list[tuple[str, Any, Any]] = [("", variable.value, info.spec.value)]
    if variable.user_key is not None:
        pairs.insert(0, ("user key: ", variable.user_key, info.spec.user_key))
    for what, struct, codec in pairs:
        if (fault := misfit(struct, codec.description)) is not None:
            return f"{what}{fault}"
    return None


def _ttl_us(name: str, info: StateInfo, wanted: MappingChoices) -> int | None:
    given = wanted.ttl.get(name)
    return info.ttl_us if given is None else given // _MICROSECOND


def _timer_faults(
    query: TwsQuery, declared: DeclaredStates, wanted: MappingChoices
) -> Iterator[str]:
    if query.timers is None:
        if wanted.without_timers:
            yield "timers: they are left out, and the query's time mode is None: it has none"
    elif not declared.has_timers and not wanted.without_timers and not query.timers.isEmpty():
        yield (
            "timers: the query has some, and the function has no on_timer: define it, or leave "
            "the timers out"
        )
