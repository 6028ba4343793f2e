"""Versions of an operator's state: who may write one, which one is opened, what is kept.

The runtime uses `OperatorVersions`; readers from outside the query use `open_version`.
`docs/decisions/0001-versions-and-fencing.md` explains why each rule exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay_state_api.lazy_names import lazy_names

if TYPE_CHECKING:
    from forebay_engine.versions.choosing.forks import RestoreFrom
    from forebay_engine.versions.choosing.reader import VersionReader, open_version
    from forebay_engine.versions.cleaning.janitor import Janitor, JanitorPass, is_due
    from forebay_engine.versions.format.checkpoint import Checkpoint
    from forebay_engine.versions.format.epochs import RunIdentity
    from forebay_engine.versions.format.folder import OperatorStorage
    from forebay_engine.versions.format.layout import operator_folder
    from forebay_engine.versions.format.manifest import Manifest
    from forebay_engine.versions.operator import OperatorVersions, TaskVersion

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
    "forebay_engine.versions.format.checkpoint": ("Checkpoint",),
    "forebay_engine.versions.format.epochs": ("RunIdentity",),
    "forebay_engine.versions.format.folder": ("OperatorStorage",),
    "forebay_engine.versions.choosing.forks": ("RestoreFrom",),
    "forebay_engine.versions.cleaning.janitor": (
        "Janitor",
        "JanitorPass",
        "is_due",
    ),
    "forebay_engine.versions.format.layout": ("operator_folder",),
    "forebay_engine.versions.format.manifest": ("Manifest",),
    "forebay_engine.versions.operator": (
        "OperatorVersions",
        "TaskVersion",
    ),
    "forebay_engine.versions.choosing.reader": (
        "VersionReader",
        "open_version",
    ),
}
"""Module → its public names, imported on first use: a command needs few of them."""

__getattr__ = lazy_names(__name__, _HOMES)
