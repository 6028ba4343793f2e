"""Admits jobs whose names stay below the storage's root and whose sizes are within limits."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from forebay_compaction_ray.messages import Submission
from forebay_compaction_ray.protocol import RefusedError
from forebay_state_api.compaction.job_names import check_names

_LONGEST_ID = 128


def check_submission(
    submission: Submission, limits: Mapping[str, int], storages: Collection[str]
) -> None:
    """Raise `RefusedError` for a job that can never run here."""
    if submission.storage not in storages:
        raise RefusedError(
            "unknown_storage",
            f"this gateway has no storage {submission.storage!r}, only "
            f"{', '.join(sorted(storages))}: start it with --storage {submission.storage}=URL, or "
            "set spark.forebay.compaction.remote.storage",
        )
    job = submission.job
    if not 0 < len(job.id) <= _LONGEST_ID:
        raise RefusedError("malformed", f"a job's id has 1 to {_LONGEST_ID} characters")
    try:
        check_names(job)
    except ValueError as error:
        raise RefusedError("names", str(error)) from error
    if any(file.size < 0 for file in job.inputs):
        raise RefusedError("malformed", "an input has a negative size")
    if above := submission.excess(limits):
        raise RefusedError("too_large", above)
