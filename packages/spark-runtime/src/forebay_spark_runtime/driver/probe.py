"""Describes the Python process that it runs in. Executors get its code, not its name.

Forebay may be missing there, so it is imported inside the functions that need it.
"""

from __future__ import annotations

import os
import platform
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

MISSING = "missing"
WRITABLE = "writable"


def describe(
    packages: Sequence[str], directory: str, options: Mapping[str, Any], marker: str
) -> dict[str, Any]:
    """Describe this process: its host and packages, and the faults of its plugins and storage.

    :param packages: the distributions whose versions are reported.
    :param directory: the state directory to probe, a path or a URL.
    :param options: the storage options for ``directory``.
    :param marker: the name of an object below ``directory`` that the driver has written.
    """
    values = {
        "host": socket.gethostname(),
        "user": _user(),
        "python": platform.python_version(),
        "executable": sys.executable,
        **{name: _version(name) for name in packages},
        "plugins": _plugins(),
        "temporary files": _temporary(),
        "memory limit": _memory_limit(),
    }
    # The parent of a worker is Spark's daemon; the daemon's is the executor's JVM.
    return {
        "values": values,
        "process": _parent_of(os.getppid()),
        "refusals": [*_broken_plugins(), *_refusals(directory, options, marker)],
        "now": time.time(),
    }


def _user() -> str:
    return f"{os.getuid()}" if hasattr(os, "getuid") else ""


def _parent_of(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return int(stat.rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return pid


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return MISSING


def _plugins() -> str:
    """Return the names of the plugins that a job may use.

    Plugins that provide more than commands.
    """
    try:
        from forebay_state_api.plugins import plugins
        from forebay_state_api.plugins.kinds import COMMANDS

        return ", ".join(
            sorted(
                each.plugin
                for each in plugins().installed()
                if each.problems or set(each.offers) != {COMMANDS.noun}
            )
        )
    except Exception as error:  # noqa: BLE001 - the report includes whatever a plugin raises
        return f"{type(error).__name__}: {error}"


def _broken_plugins() -> list[str]:
    try:
        from forebay_state_api.plugins import plugins
    except ImportError:
        return []  # the missing package is a problem of its own
    return plugins().problems()


def _temporary() -> str:
    try:
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"x")
    except OSError as error:
        return str(error)
    return WRITABLE


def _memory_limit() -> str:
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(name).read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit() and int(text) < 1 << 60:
            return f"{int(text) >> 20} MiB"
    return "none"


def _refusals(directory: str, options: Mapping[str, Any], marker: str) -> list[str]:
    try:
        from forebay_engine.versions.cleaning.storage_probe import examine
        from forebay_state_api.contract.object_storage import ObjectNotFoundError
        from forebay_state_api.storage import open_storage
    except ImportError as error:
        return [f"storage was not probed, for {error.name or error} cannot be imported"]
    try:
        storage = open_storage(directory, options)
        storage.get(marker)
    except ObjectNotFoundError:
        refusal = (
            f"{directory} is different storage here: the object written by the driver cannot be "
            "read. Mount the same directory on all machines, or name a URL that all of them reach"
        )
        return [refusal]
    except Exception as error:  # noqa: BLE001 - the report includes whatever a storage raises
        return [f"{directory} cannot be read: {type(error).__name__}: {error}"]
    return [
        f"{directory}: not kept: {finding.promise}: {finding.problem}"
        for finding in examine(storage)
        if finding.problem
    ]
