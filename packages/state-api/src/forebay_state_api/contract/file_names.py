"""Fresh names for the files that backends and compaction jobs write.

A name holds the version for which its file is written, inverted and in fixed-width hex: so files
of versions that nobody can open any more are found, and the newest come first in a listing.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

from forebay_state_api.threads import RANDOM

__all__ = [
    "DATA",
    "LAST_VERSION",
    "compaction_prefix",
    "compaction_run_prefix",
    "data_name",
    "data_version",
    "inverted",
    "is_compaction_prefix",
    "random_id",
    "version_of",
]

DATA: Final = "data"
"""The folder of a backend's files, below the operator's."""
LAST_VERSION: Final = (1 << 48) - 1
"""The largest version that a name has room for."""
_COMPACTION: Final = re.compile(rf"{DATA}/[0-9a-f]{{12}}/compaction-[0-9a-f]{{24}}/")


def random_id() -> str:
    """Return 96 random bits in hex: the identity of one object, never used twice."""
    return str(getattr(RANDOM, "source", secrets).token_hex(12))


def data_name(version: int, kind: str) -> str:
    """Return a fresh name for a file of kind ``kind`` that is written for ``version``."""
    return f"{DATA}/{inverted(version)}/{kind}-{random_id()}"


def data_version(name: str) -> int | None:
    """Return the version for which a file of this name was written."""
    parts = name.split("/")
    return version_of(parts[1]) if len(parts) > 1 and parts[0] == DATA else None


def compaction_prefix(version: int) -> str:
    """Return a fresh prefix for the files of a compaction job submitted with ``version``."""
    return f"{data_name(version, 'compaction')}/"


def is_compaction_prefix(prefix: str) -> bool:
    """Return whether `compaction_prefix` could have returned ``prefix``."""
    return _COMPACTION.fullmatch(prefix) is not None


def compaction_run_prefix(prefix: str) -> str:
    """Return a fresh prefix for the files of one run of the job with this prefix."""
    return f"{prefix}run-{random_id()}/"


def inverted(version: int) -> str:
    """Return a version as a path part that sorts newest first."""
    if not 0 <= version <= LAST_VERSION:
        raise ValueError(f"not a version: {version}")
    return f"{LAST_VERSION - version:012x}"


def version_of(part: str) -> int | None:
    """Return the version that `inverted` encoded; ``None`` for any other name."""
    return LAST_VERSION - int(part, 16) if re.fullmatch(r"[0-9a-f]{12}", part) else None
