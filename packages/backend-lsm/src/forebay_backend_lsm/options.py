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
    """The settings in force for one opening."""

    block_cache_bytes: int = option(
        BYTES,
        "256m",
        "Memory of a worker process for blocks, indexes and filters, all operators together.",
        minimum=0,
    )
    memtable_bytes: int = option(
        BYTES,
        "64m",
        "Changes of a subtask beyond this become a file before the micro-batch ends.",
        minimum=1,
    )
    disk_cache_dir: str | None = option(
        LOCATION, None, "A local directory for blocks of remote files, for all workers of a host."
    )
    disk_cache_bytes: int = option(
        BYTES, "10g", "What the disk cache may take up.", minimum=1 << 20
    )
    block_bytes: int = 8 << 10
    """Size of a block before compression, about."""
    compression: str = option(one_of("lz4", "zstd", "none"), "lz4", "How blocks are compressed.")
    max_runs: int = option(
        int,
        10,
        "Files that one key may have to be looked for in, before files are compacted at once.",
        minimum=3,
    )
    space_amplification: float = 1.75
    """All layers are merged when they have so many times the bytes of the oldest one."""
    target_file_bytes: int = option(
        BYTES, "32m", "About how large compacted files become.", minimum=1
    )
    job_timeout_s: float = option(
        DURATION,
        "10min",
        "A compaction that shows no sign of life for so long is submitted again.",
    )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Take what is given, and the default of what is not.

        Raises `ConfigurationError` for a disk cache that is not on a disk of this host.
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
        """Layers above which the newest are merged: room is left while jobs are under way."""
        return max(1, self.max_runs * 6 // 10)
