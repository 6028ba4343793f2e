"""Versions of an operator's state: who may write one, which one is opened, what is kept.

The runtime uses `OperatorVersions`; readers from outside the query use `open_version`.
`docs/decisions/0001-versions-and-fencing.md` explains why each rule exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay_state_api.lazy_names import lazy_names

if TYPE_CHECKING:
    from forebay_state_api.versions.checkpoint import Checkpoint
    from forebay_state_api.versions.epochs import RunIdentity
    from forebay_state_api.versions.folder import OperatorStorage
    from forebay_state_api.versions.forks import RestoreFrom
    from forebay_state_api.versions.janitor import Janitor, JanitorPass, is_due
    from forebay_state_api.versions.layout import operator_folder
    from forebay_state_api.versions.manifest import Manifest
    from forebay_state_api.versions.operator import OperatorVersions, TaskVersion
    from forebay_state_api.versions.reader import VersionReader, open_version

__all__ = [
    "Checkpoint",
    "Janitor",
    "JanitorPass",
    "Manifest",
    "OperatorStorage",
    "OperatorVersions",
    "RestoreFrom",
    "RunIdentity",
    "TaskVersion",
    "VersionReader",
    "is_due",
    "open_version",
    "operator_folder",
]

_HOMES: Final = {
    "forebay_state_api.versions.checkpoint": ("Checkpoint",),
    "forebay_state_api.versions.epochs": ("RunIdentity",),
    "forebay_state_api.versions.folder": ("OperatorStorage",),
    "forebay_state_api.versions.forks": ("RestoreFrom",),
    "forebay_state_api.versions.janitor": (
        "Janitor",
        "JanitorPass",
        "is_due",
    ),
    "forebay_state_api.versions.layout": ("operator_folder",),
    "forebay_state_api.versions.manifest": ("Manifest",),
    "forebay_state_api.versions.operator": (
        "OperatorVersions",
        "TaskVersion",
    ),
    "forebay_state_api.versions.reader": (
        "VersionReader",
        "open_version",
    ),
}
"""Module → its public names, imported on first use: a command needs few of them."""

__getattr__ = lazy_names(__name__, _HOMES)
