"""The states of an operator, as its newest version stores them: names and types, no content."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forebay_state_api.codecs import describe_type
from forebay_state_api.reading.operator_state import operator_states_of
from forebay_state_api.reading.stored_states import key_type_of, states_of, timer_spec

if TYPE_CHECKING:
    from forebay_console.watching import OperatorView


def states(operator: OperatorView) -> Mapping[str, Any]:
    """Return what the template shows."""
    version = operator.timeline.newest
    manifests = operator.manifests(version) if version else ()
    if version is None or not manifests:
        return {"version": version, "stored": False}
    key = key_type_of(manifests)
    return {
        "version": version,
        "stored": True,
        "backend": manifests[0].backend,
        "key_type": None if key is None else describe_type(key),
        "states": states_of(manifests).values(),
        "operator_states": operator_states_of(manifests).values(),
        "timers": timer_spec(manifests) is not None,
        "keys": version.count("keys"),
        "bytes": version.count("state_bytes"),
        "files": version.count("files"),
    }
