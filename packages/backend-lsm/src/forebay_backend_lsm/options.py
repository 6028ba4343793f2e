"""The settings of the lsm backend, ``spark.forebay.lsm.*``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from forebay_state_api.errors import ConfigurationError
from forebay_state_api.settings import BYTES, DURATION, LOCATION, PREFIX, Setting, one_of

SETTINGS: Final[Mapping[str, Setting]] = {
    setting.name: setting
    for setting in (
        Setting(
            "block-cache-bytes",
            BYTES,
            "256m",
            "Memory of a worker process for blocks, indexes and filters, all operators together.",
            minimum=0,
        ),
        Setting(
            "memtable-bytes",
            BYTES,
            "64m",
            "Changes of a subtask beyond this become a file before the micro-batch ends.",
            minimum=1,
        ),
        Setting(
            "disk-cache-dir",
            LOCATION,
            None,
            "A local directory for blocks of remote files, for all workers of a host.",
        ),
        Setting(
            "disk-cache-bytes", BYTES, "10g", "What the disk cache may take up.", minimum=1 << 20
        ),
        Setting(
            "requests-in-flight",
            int,
            64,
            "Read requests of a worker process that are under way at once.",
            minimum=1,
        ),
        Setting(
            "block-bytes",
            BYTES,
            "8k",
            "What is read and verified at once, before compression.",
            minimum=512,
        ),
        Setting("compression", one_of("lz4", "zstd", "none"), "lz4", "How blocks are compressed."),
        Setting(
            "max-runs",
            int,
            10,
            "Files that one key may have to be looked for in, before files are compacted at once.",
            minimum=3,
        ),
        Setting(
            "space-amplification",
            float,
            1.75,
            "Everything is compacted when all files have this many times the oldest ones' bytes.",
            minimum=1,
        ),
        Setting(
            "target-file-bytes", BYTES, "32m", "About how large compacted files become.", minimum=1
        ),
        Setting(
            "job-timeout",
            DURATION,
            "10min",
            "A compaction that shows no sign of life for so long is submitted again.",
        ),
    )
}
"""Name → declaration, as `StateBackend.options` wants it."""


def with_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given, and the default of what is not."""
    defaults = {name: setting.default_value() for name, setting in SETTINGS.items()}
    return {**defaults, **given}


@attrs.frozen(kw_only=True)
class LsmOptions:
    """The settings in force for one opening, without those of compaction."""

    block_cache_bytes: int
    """Budget of the process for decoded blocks and what is known of open files."""
    memtable_bytes: int
    """Encoded changes beyond this are spilled to a file."""
    disk_cache_dir: str | None
    """Where ranges of remote files are kept; ``None``: nowhere."""
    disk_cache_bytes: int
    """Budget of that directory."""
    requests_in_flight: int
    """Upper bound of concurrent read requests in the process."""
    block_bytes: int
    """Size of a block before compression, about."""
    compression: str
    """``lz4``, ``zstd`` or ``none``."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> LsmOptions:
        """Take what is given, and the default of what is not.

        Raises `ConfigurationError` for a disk cache that is not on a disk of this host.
        """
        value = with_defaults(given)
        directory = value["disk-cache-dir"]
        if directory is not None and "://" in directory:
            raise ConfigurationError(
                f"{PREFIX}lsm.disk-cache-dir = {directory!r}: expected a directory of this host"
            )
        fields = [field.name for field in attrs.fields(cls)]
        return cls(**{field: value[field.replace("_", "-")] for field in fields})
