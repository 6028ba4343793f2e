"""The states of an operator, as its newest version stores them: names and types, no content.

Sizes are in the files of a version, not in its manifests, so they are read for those who ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from forebay_console.pages.version import version_number
from forebay_engine.versions.format.key_types import key_type_text
from forebay_state_api.errors import ForebayError
from forebay_state_processor.reading.operator_state_rows import operator_states_of
from forebay_state_processor.reading.stored_states import states_of, timer_spec

if TYPE_CHECKING:
    from forebay_console.watching import OperatorView
    from forebay_console.watching.content import ContentReader


def states(operator: OperatorView, reader: ContentReader, asked: str) -> Mapping[str, Any]:
    """Return the values for the template; ``asked`` is the version whose sizes are shown."""
    version = operator.timeline.newest
    manifests = operator.manifests(version) if version else ()
    if version is None or not manifests:
        return {"version": version, "stored": False, "problem": ""}
    return {
        "version": version,
        "stored": True,
        "backend": manifests[0].backend,
        "key_type": key_type_text(manifests),
        "states": states_of(manifests).values(),
        "operator_states": operator_states_of(manifests).values(),
        "timers": timer_spec(manifests) is not None,
        "keys": version.count("keys"),
        "bytes": version.count("state_bytes"),
        "files": version.count("files"),
        **_sizes(operator, reader, asked),
    }


def _sizes(operator: OperatorView, reader: ContentReader, asked: str) -> Mapping[str, Any]:
    nothing: dict[str, Any] = {"sizes": None, "problem": ""}
    if not asked:
        return nothing
    number = version_number(asked)
    if number is None:
        return {**nothing, "problem": "Versions are whole numbers."}
    try:
        return {**nothing, "sizes": reader.sizes(number, operator.timeline.versions)}
    except ForebayError as error:
        return {**nothing, "problem": str(error)}
