"""Compaction jobs, as the listing of an operator's folder shows them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import attrs

from forebay_state_api.contract.file_names import data_version, is_compaction_prefix

if TYPE_CHECKING:
    from datetime import datetime

    from forebay_state_api.contract.object_storage import ObjectInfo

_PREFIX_PARTS = 3


@attrs.frozen(kw_only=True)
class CompactionFolder:
    """The folder of one compaction job that some process has begun to run."""

    prefix: str
    version: int
    """The version with which it was submitted."""
    begun: datetime
    """The time of its first object, by the store's clock."""
    seen: datetime
    """The time of its newest object: a heartbeat, an output, or the result."""
    is_done: bool
    """Whether its result is stored."""
    bytes: int
    """Size of everything that its runs have written."""


def compactions_of(files: Iterable[ObjectInfo]) -> Sequence[CompactionFolder]:
    """Return the compaction jobs among the objects below ``data/``, the newest version first."""
    found: dict[str, list[ObjectInfo]] = {}
    for info in files:
        prefix = "/".join(info.name.split("/")[:_PREFIX_PARTS]) + "/"
        if is_compaction_prefix(prefix):
            found.setdefault(prefix, []).append(info)
    folders = (_folder(prefix, infos) for prefix, infos in found.items())
    return sorted(folders, key=lambda one: (-one.version, one.prefix))


def _folder(prefix: str, infos: Sequence[ObjectInfo]) -> CompactionFolder:
    return CompactionFolder(
        prefix=prefix,
        version=data_version(prefix) or 0,
        begun=min(info.modified for info in infos),
        seen=max(info.modified for info in infos),
        is_done=any(info.name == f"{prefix}result" for info in infos),
        bytes=sum(info.size for info in infos),
    )
