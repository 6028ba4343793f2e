"""The hooks a Forebay plugin may implement.

A plugin is a module (or object) named by an entry point of the group ``forebay``; it implements
any of these functions under the decorator `hookimpl`::

    # pyproject.toml:  [project.entry-points.forebay]
    #                  acme = "acme_forebay.plugin"
    from forebay_state_api.plugins import hookimpl


    @hookimpl
    def forebay_state_backends():
        from acme_forebay.backend import AcmeBackend

        return AcmeBackend

Every hook returns one named thing, or a list or tuple of several, or ``None`` for nothing. Each is
called at most once in a process, at the first use of its kind, so import heavy modules inside it.
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

PROJECT: Final = "forebay"
"""The pluggy project and the entry point group."""

hookspec: Final = pluggy.HookspecMarker(PROJECT)
hookimpl: Final = pluggy.HookimplMarker(PROJECT)
"""Marks a function of a plugin as the implementation of the hook of the same name."""

T = TypeVar("T")
Several: TypeAlias = T | Sequence[T] | None
"""What a hook returns: one, a list or tuple of several, or ``None``."""


class Operator(Protocol):
    """What ``forebay_operators`` gives: anything with these two; its use is the runtime's."""

    name: ClassVar[str]
    """The word the operator is asked for by, such as ``ordered_wait``."""
    contract_version: ClassVar[int]
    """The `CONTRACT_VERSION` that it was written for."""


class HookSpecs:
    """The signatures; see the module for what they have in common."""

    @hookspec
    def forebay_state_backends(self) -> Several[type[StateBackend]]:
        """Give backend classes, each with ``name``, ``contract_version`` and ``options``.

        Called on the driver when settings are resolved, and in each worker process that opens
        state.
        """

    @hookspec
    def forebay_compaction_services(self) -> Several[type[CompactionService]]:
        """Give classes that run compaction jobs, each with ``name`` and ``contract_version``.

        Called in each worker process whose backend compacts.
        """

    @hookspec
    def forebay_compactors(self) -> Several[Compactor]:
        """Give what rewrites files: each has ``format``, ``contract_version`` and ``compact``.

        Called wherever a job runs: in a Spark worker by the ``local`` service, elsewhere in the
        worker processes of a remote one.
        """

    @hookspec
    def forebay_operators(self) -> Several[Any]:
        """Give operators for streaming DataFrames, each with ``name`` and ``contract_version``.

        Called on the driver.
        """

    @hookspec
    def forebay_storages(self) -> Several[type[ObjectStorage]]:
        """Give object storage classes, each with ``schemes`` and ``contract_version``.

        ``schemes`` is a tuple of the URL schemes that the class opens; see `ObjectStorage` for what
        it is called with. Requests to it are tried again as `RetryingStorage` does.

        Called in any process that opens a storage.
        """

    @hookspec
    def forebay_commands(self) -> Several[click.Command]:
        """Give sub-commands of ``forebay``. Called in the process of the command line only."""
