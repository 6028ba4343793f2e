"""The operator that a command is about: named, or the only one of its state directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from forebay_engine.versions.format.directory_contents import what_is_there
from forebay_state_api.errors import ConfigurationError
from forebay_state_processor.observing import StoredOperator, stored_operators

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay_state_api.contract.object_storage import ObjectStorage

_SHOWN: Final = 10

query_option: Final = click.option(
    "--query", help="The query's id, or the operator's query=; not needed if it is alone."
)
uid_option: Final = click.option("--uid", help="The operator's uid; not needed if it is alone.")


def one_operator(root: ObjectStorage, query: str | None, uid: str | None) -> StoredOperator:
    """Return the operator with these names, where ``None`` stands for any.

    Raises `ConfigurationError` unless there is exactly one; it lists those that there are.
    """
    found = stored_operators(root, query=query, uid=uid)
    if len(found) == 1:
        return found[0]
    if not found:
        there = what_is_there(root, query, uid)
        raise ConfigurationError(f"no such operator in {root.url}: {there}")
    raise ConfigurationError(
        f"{root.url} has {len(found)} such operators: choose one by --query and --uid: "
        f"{_listed(found)}"
    )


def no_complete_version(root: ObjectStorage, query: str, uid: str) -> ConfigurationError:
    """Return the error for an operator without a version; it lists what there is."""
    there = what_is_there(root, query, uid)
    return ConfigurationError(
        f"no complete version of operator {uid!r} is stored in {root.url}: {there}"
    )


def _listed(operators: Sequence[StoredOperator]) -> str:
    names = [f"--query {one.query} --uid {one.uid}" for one in operators[:_SHOWN]]
    more = f" and {len(operators) - _SHOWN} more" if len(operators) > _SHOWN else ""
    return "; ".join(names) + more
