"""Versions of an operator's state: who may make one, which one is opened, what is kept.

`OperatorVersions` is what the runtime uses, `open_version` what reads from outside;
`docs/decisions/0001-versions-and-fencing.md` says why each rule is there.
"""

from forebay_state_api.versions.checkpoint import Checkpoint
from forebay_state_api.versions.epochs import RunIdentity
from forebay_state_api.versions.folder import OperatorStorage
from forebay_state_api.versions.forks import RestoreFrom
from forebay_state_api.versions.janitor import Janitor, Sweep, is_due
from forebay_state_api.versions.layout import data_name, operator_folder
from forebay_state_api.versions.manifest import Manifest
from forebay_state_api.versions.operator import OperatorVersions, TaskVersion
from forebay_state_api.versions.reader import VersionReader, open_version

__all__ = [
    "Checkpoint",
    "Janitor",
    "Manifest",
    "OperatorStorage",
    "OperatorVersions",
    "RestoreFrom",
    "RunIdentity",
    "Sweep",
    "TaskVersion",
    "VersionReader",
    "data_name",
    "is_due",
    "open_version",
    "operator_folder",
]
