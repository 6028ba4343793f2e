"""The contract of compaction, and the ``local`` service that ships with state-api.

A *job* says which files of one operator to rewrite into fewer; it is plain data, so that it can be
stored in a manifest and sent to another machine. A *compactor* knows one file format and does the
rewriting; a *service* decides where that happens. Neither makes the outputs visible and neither
deletes: a finished job leaves a result object under its own prefix, and whichever task opens the
state next installs it in the manifest that it commits. A service is asked for progress only.
"""

from forebay_state_api.compaction.compactor import Compactor, VerifyingCompactor, perform
from forebay_state_api.compaction.job import CompactionJob, CompactionResult
from forebay_state_api.compaction.local import LocalCompactionService
from forebay_state_api.compaction.opened import close_services, service_of
from forebay_state_api.compaction.service import (
    CompactionFault,
    CompactionPhase,
    CompactionService,
    CompactionStatus,
)

__all__ = [
    "CompactionFault",
    "CompactionJob",
    "CompactionPhase",
    "CompactionResult",
    "CompactionService",
    "CompactionStatus",
    "Compactor",
    "LocalCompactionService",
    "VerifyingCompactor",
    "close_services",
    "perform",
    "service_of",
]
