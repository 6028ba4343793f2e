"""The operators that a command is about: one, named or the only one, or all that have a name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from forebay_cli.options.conf import conf_values
from forebay_cli.options.state_directory import state_dir_option, state_directory
from forebay_engine.versions.format.directory_contents import unknown_operator_error
from forebay_state_api.errors import ConfigurationError
from forebay_state_processor.observing.operators import StoredOperator, stored_operators
from forebay_state_processor.reading.version_choice import OperatorSource, reader_settings

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage

T = TypeVar("T")

_SHOWN: Final = 10

query_option: Final = click.option(
    "--query", help="The query's id, or the operator's query=; not needed if it is alone."
)
uid_option: Final = click.option("--uid", help="The operator's uid; not needed if it is alone.")
of_query_option: Final = click.option("--query", help="Operators of this query only.")
of_uid_option: Final = click.option("--uid", help="Operators of this uid only.")


def operator_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add the options that name one stored operator; the command receives it as ``read``."""

    @functools.wraps(command)
    def with_operator(
        *args: Any,
        state_dir: str,
        query: str | None,
        uid: str | None,
        conf: Mapping[str, str],
        **given: Any,
    ) -> T:
        return command(*args, read=stored_operator(state_dir, query, uid, conf), **given)

    return state_dir_option(query_option(uid_option(conf_values(with_operator))))


def stored_operator(
    state_dir: str, query: str | None, uid: str | None, conf: Mapping[str, str]
) -> OperatorSource:
    """Return the stored operator with these names, where ``None`` stands for any.

    If both are given, nothing is read. Raises a `ConfigurationError` that lists the candidates
    unless there is exactly one.
    """
    settings = reader_settings(conf)
    root = state_directory(state_dir, settings)
    one, *others = found = operators_in(root, query, uid)
    if others:
        raise ConfigurationError(
            f"{root.url} has {len(found)} such operators: choose one by --query and --uid: "
            f"{_listed([f'--query {each.query} --uid {each.uid}' for each in found])}"
        )
    return OperatorSource.with_settings(root, query=one.query, uid=one.uid, settings=settings)


def operators_in(
    root: ObjectStorage, query: str | None, uid: str | None = None
) -> Sequence[StoredOperator]:
    """Return all operators with these names, at least one; raises `ConfigurationError`."""
    found = stored_operators(root, query=query, uid=uid)
    if not found:
        raise unknown_operator_error(root, query, uid)
    return found


def operators_of_query(
    root: ObjectStorage, query: str | None, uids: Sequence[str]
) -> Sequence[StoredOperator]:
    """Return some operators of a query, by default all, where ``None`` is the only query.

    Raises a `ConfigurationError` that lists what is stored if there is no query, or several.
    """
    if query is None:
        queries = sorted({one.query for one in operators_in(root, None)})
        if len(queries) > 1:
            raise ConfigurationError(
                f"{root.url} has {len(queries)} queries: choose one: "
                f"{_listed([f'--query {each}' for each in queries])}"
            )
        query = queries[0]
    return [StoredOperator.named(query, uid) for uid in uids] or operators_in(root, query)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return "; ".join(names[:_SHOWN]) + more
