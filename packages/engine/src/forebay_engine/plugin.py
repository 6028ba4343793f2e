"""The plugin of the engine: the ``local`` compaction service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_state_api.plugins import hookimpl

if TYPE_CHECKING:
    from forebay_state_api.contract.compaction_service import CompactionService


@hookimpl
def forebay_compaction_services() -> type[CompactionService]:
    """Return the service that compacts in the worker's own process."""
    from forebay_engine.compaction.local_service import LocalCompactionService

    return LocalCompactionService
