"""The settings of the lsm backend, ``spark.forebay.lsm.*``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.settings import (
    BYTES,
    DURATION,
    LOCATION,
    PREFIX,
    one_of,
    option,
    options_from,
)


@attrs.frozen(kw_only=True)
class LsmOptions:
    """The settings of one opening."""

    block_cache_bytes: int = option(
        BYTES,
        "256m",
        "Memory of a worker process for blocks, indexes and filters of all operators.",
        minimum=0,
    )
    memtable_bytes: int = option(
        BYTES,
        "64m",
        "A subtask spills its changes to a file within a micro-batch when they exceed this.",
        minimum=1,
    )
    disk_cache_dir: str | None = option(
        LOCATION, None, "A local directory for blocks of remote files, shared by a host's workers."
    )
    disk_cache_bytes: int = option(BYTES, "10g", "Maximum size of the disk cache.", minimum=1 << 20)
    block_bytes: int = 8 << 10
    """Approximate size of a block before compression."""
    compression: str = option(one_of("lz4", "zstd", "none"), "lz4", "Compression of blocks.")
    max_runs: int = option(
        int,
        10,
        "Most files to search for one key; beyond that, the commit itself compacts files.",
        minimum=3,
    )
    space_amplification: float = 1.75
    """All layers are merged when their size exceeds this many times the size of the oldest."""
    target_file_bytes: int = option(BYTES, "32m", "Approximate size of compacted files.", minimum=1)
    job_timeout_s: float = option(
        DURATION,
        "10min",
        "A compaction that shows no sign of life for this long is submitted again.",
    )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Resolve the ``given`` settings, with defaults for the others.

        Raises `ConfigurationError` for a disk cache that is not on a local disk.
        """
        options = options_from(cls, given)
        directory = options.disk_cache_dir
        if directory is not None and "://" in directory:
            raise ConfigurationError(
                f"{PREFIX}lsm.disk-cache-dir = {directory!r}: expected a directory of this host"
            )
        return options

    @property
    def goal(self) -> int:
        """Merge the newest layers above this many, to leave room while jobs are running."""
        return max(1, self.max_runs * 6 // 10)
