"""Numbers from the manifests of a version: keys, bytes, subtasks, and the opening time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from forebay_engine.versions import OperatorStorage, operator_folder
from forebay_engine.versions.choosing.reader import open_version
from forebay_spark_runtime.demo.spark import UID
from forebay_state_api.storage import open_storage

if TYPE_CHECKING:
    from forebay_spark_runtime.demo.directory import DemoDirectory
    from forebay_state_api.contract.object_storage import ObjectStorage


class StateSummary(NamedTuple):
    """One committed version of the demo's state."""

    version: int
    subtasks: int
    keys: int
    """The number of aircraft."""
    size: int
    """Total bytes of the files that the version needs."""
    opening_s: float
    """The longest time in which a subtask opened the previous version, in seconds."""


def query_id(directory: DemoDirectory) -> str:
    """Return the query's id, which Spark stores in the checkpoint."""
    text = (directory.checkpoint / "metadata").read_text(encoding="utf-8")
    found: str = json.loads(text)["id"]
    return found


def operator_storage(directory: DemoDirectory) -> ObjectStorage:
    """Return the storage of the operator's versions."""
    return OperatorStorage(open_storage(directory.state), operator_folder(query_id(directory), UID))


def read_version(directory: DemoDirectory, version: int) -> StateSummary:
    """Return the numbers of a version; raises as `open_version` does."""
    with open_version(operator_storage(directory), uid=UID, version=version) as reader:
        manifests = reader.manifests
    files = {file.name: file.size for one in manifests for file in one.files}
    return StateSummary(
        version=reader.version,
        subtasks=len({one.made.subtask for one in manifests}),
        keys=sum(one.metrics["keys"] or 0 for one in manifests),
        size=sum(files.values()),
        opening_s=max(one.metrics["opening_s"] for one in manifests),
    )
