"""The hooks that a Forebay plugin may implement.

A plugin is a module (or object) named by an entry point of the group ``forebay``; it implements
any of these functions under the decorator `hookimpl`, which this light module has.

Every hook returns one named thing, a list or tuple of several, or ``None``. Each is called at most
once in a process, when a thing of its kind is first used, so import heavy modules inside it. What
it returns is checked then; what cannot be used is an error for those who ask for it, and only them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias, TypeVar

import pluggy

if TYPE_CHECKING:
    import click

    from forebay_state_api.contract.backend import StateBackend
    from forebay_state_api.contract.compaction_service import CompactionService
    from forebay_state_api.contract.compactor import Compactor
    from forebay_state_api.contract.object_storage import ObjectStorage

__all__ = ["PROJECT", "HookSpecs", "Operator", "hookimpl"]

PROJECT: Final = "forebay"
"""The pluggy project and the entry point group."""

_hookspec: Final = pluggy.HookspecMarker(PROJECT)
hookimpl: Final = pluggy.HookimplMarker(PROJECT)
"""Marks a plugin's function as the implementation of the hook with the same name."""

T = TypeVar("T")
Several: TypeAlias = T | Sequence[T] | None
"""The return type of hooks: one thing, a list or tuple of several, or ``None``."""


class Operator(Protocol):
    """A result of ``forebay_operators``, with at least these attributes."""

    name: ClassVar[str]
    """The name under which users request the operator, such as ``ordered_wait``."""
    contract_version: ClassVar[int]
    """The `CONTRACT_VERSION` that it was written for."""


class HookSpecs:
    """The signatures of the hooks; the module's docstring has the rules that apply to all."""

    @_hookspec
    def forebay_state_backends(self) -> Several[type[StateBackend]]:
        """Return backend classes, each with ``name``, ``contract_version`` and ``options``.

        Called on the driver when settings are resolved, and in each worker process that opens
        state.
        """

    @_hookspec
    def forebay_compaction_services(self) -> Several[type[CompactionService]]:
        """Return classes that run compaction jobs, each with ``name`` and ``contract_version``.

        Called in each worker process whose backend compacts.
        """

    @_hookspec
    def forebay_compactors(self) -> Several[Compactor]:
        """Return compactors, each with ``format``, ``contract_version`` and ``compact``.

        Called in each process that runs a job: in a Spark worker by the ``local`` service, in the
        service's own workers by a remote one.
        """

    @_hookspec
    def forebay_operators(self) -> Several[Any]:
        """Return operators for streaming DataFrames, each with ``name`` and ``contract_version``.

        Called on the driver.
        """

    @_hookspec
    def forebay_storages(self) -> Several[type[ObjectStorage]]:
        """Return object storage classes, each with ``schemes`` and ``contract_version``.

        ``schemes`` is a tuple of the URL schemes that the class opens; `ObjectStorage` documents
        the arguments of its constructor. `RetryingStorage` retries its requests.

        Called in any process that opens a storage.
        """

    @_hookspec
    def forebay_commands(self) -> Several[click.Command]:
        """Return sub-commands of ``forebay``. Called only by the command line.

        A `LazyCommand` takes the place of a command whose imports take long. On a terminal, control
        characters in what commands write are escaped, styles of click among them; the console of
        `forebay_cli.output.rich_console` draws.
        """
