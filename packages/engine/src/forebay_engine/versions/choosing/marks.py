"""The watermark with which an operator ran a micro-batch, for the operator behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_engine.versions.format.markers import list_version
from forebay_state_api.contract.backend import NO_TIME

if TYPE_CHECKING:
    from forebay_state_api.contract.object_storage import ObjectStorage


def mark_of(storage: ObjectStorage, version: int, run_key: str) -> int | None:
    """Return the watermark in µs with which a run has made a version; one request.

    All subtasks of a micro-batch have the same one, and the names of their manifests carry it.
    ``None`` if there was no watermark yet.
    """
    made = list_version(storage, version).of_run(run_key).manifests
    found = [clocks["watermark_us"] for one in made if (clocks := one.clocks) is not None]
    watermark_us = max(found, default=NO_TIME)
    return None if watermark_us == NO_TIME else int(watermark_us)
