"""Versions of an operator's state: who may make one, which one is opened, what is kept.

`OperatorVersions` is what the runtime uses; `docs/decisions/0001-versions-and-fencing.md` says why
each rule is there.
"""

from forebay_state_api.versions.epochs import RunIdentity
from forebay_state_api.versions.layout import data_name, operator_folder
from forebay_state_api.versions.manifest import Manifest
from forebay_state_api.versions.operator import OperatorVersions, TaskVersion

__all__ = [
    "Manifest",
    "OperatorVersions",
    "RunIdentity",
    "TaskVersion",
    "data_name",
    "operator_folder",
]
