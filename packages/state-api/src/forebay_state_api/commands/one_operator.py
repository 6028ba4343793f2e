"""The operator that a command is about: named, or the only one of its state directory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.observing import StoredOperator, stored_operators

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage


def one_operator(root: ObjectStorage, query: str | None, uid: str | None) -> StoredOperator:
    """Return the operator with these names, where ``None`` stands for any.

    Raises `ConfigurationError` unless there is exactly one; it lists those that there are.
    """
    found = stored_operators(root, query=query, uid=uid)
    if len(found) == 1:
        return found[0]
    known = ", ".join(f"{one.query} / {one.uid}" for one in found or stored_operators(root))
    if not found:
        raise ConfigurationError(
            f"no such operator in {root.url}: there are {known or 'no operators'}"
        )
    raise ConfigurationError(
        f"{root.url} has {len(found)} such operators: choose one by --query and --uid: {known}"
    )
