"""Versions of an operator's state: who may write one, which one is opened, what is kept.

The runtime uses `OperatorVersions`; readers from outside the query use `open_version`.
`docs/decisions/0001-versions-and-fencing.md` explains why each rule exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_state_api.lazy_names import import_on_first_use

if TYPE_CHECKING or not import_on_first_use(__name__):
    from forebay_engine.versions.choosing.forks import RestoreFrom as RestoreFrom
    from forebay_engine.versions.choosing.reader import (
        VersionReader as VersionReader,
        open_version as open_version,
    )
    from forebay_engine.versions.cleaning.cadence import is_due as is_due
    from forebay_engine.versions.cleaning.janitor import (
        Janitor as Janitor,
        JanitorPass as JanitorPass,
    )
    from forebay_engine.versions.format.checkpoint import Checkpoint as Checkpoint
    from forebay_engine.versions.format.epochs import RunIdentity as RunIdentity
    from forebay_engine.versions.format.folder import OperatorStorage as OperatorStorage
    from forebay_engine.versions.format.layout import operator_folder as operator_folder
    from forebay_engine.versions.format.manifest import Manifest as Manifest
    from forebay_engine.versions.operator import (
        OperatorVersions as OperatorVersions,
        TaskVersion as TaskVersion,
    )
    from forebay_engine.versions.writer_memory import WriterMemory as WriterMemory
