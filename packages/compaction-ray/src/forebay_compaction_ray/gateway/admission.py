"""Admits jobs whose names stay below the storage's root and whose sizes are within limits."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from forebay_compaction_ray.messages import OLDER_RELEASE, Submission
from forebay_compaction_ray.protocol import RefusedError
from forebay_compaction_ray.worker.body import EXAMINED
from forebay_engine.compaction.job_names import check_names
from forebay_engine.versions.format.layout import is_operator_folder

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
    if submission.is_of_newer_release:
        raise RefusedError(
            OLDER_RELEASE,
            "this gateway does not know all fields of the job: upgrade the service to the release "
            "of the query, or a later one",
        )
    job = submission.job
    if not 0 < len(job.id) <= _LONGEST_ID:
        raise RefusedError("malformed", f"a job's id has 1 to {_LONGEST_ID} characters")
    try:
        check_names(job)
    except ValueError as error:
        raise RefusedError("names", str(error)) from error
    if not is_operator_folder(job.operator) and job.operator != EXAMINED:
        raise RefusedError("names", f"{job.operator!r} is not the folder of an operator")
    for what, seconds in (("lease", job.lease_s), ("heartbeat", job.heartbeat_s)):
        if not 0 <= seconds < math.inf:
            raise RefusedError("malformed", f"a {what} of {seconds} s: expected 0 or more")
    if any(file.size < 0 for file in job.inputs):
        raise RefusedError("malformed", "an input has a negative size")
    if above := submission.excess(limits):
        raise RefusedError("too_large", above)
