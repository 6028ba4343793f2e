"""Check the names in a compaction job before anything is written below them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from forebay_state_api.contract.file_names import is_compaction_prefix
from forebay_state_api.contract.object_storage import checked_name

if TYPE_CHECKING:
    from forebay_state_api.contract.compaction_job import CompactionJob

_OPERATOR_PARTS: Final = 2
"""Query and uid."""


def check_names(job: CompactionJob) -> None:
    """Raise `ValueError` unless all names stay below the storage's root and have their forms.

    The operator is ``<query>/<uid>``, the output prefix has the form of
    `forebay_state_api.contract.file_names.compaction_prefix`, and no input is below the prefix.
    """
    prefix = job.output_prefix
    for name in (job.operator, *(file.name for file in job.inputs)):
        if "://" in name:
            raise ValueError(f"{name!r} is a URL, not a name below a storage's root")
        checked_name(name)
    if len(job.operator.split("/")) != _OPERATOR_PARTS:
        raise ValueError(f"the operator {job.operator!r} is not of the form <query>/<uid>")
    if not is_compaction_prefix(prefix):
        raise ValueError(
            f"the output prefix {prefix!r} is not of the form data/<version>/compaction-<random>/"
        )
    below = next((file.name for file in job.inputs if file.name.startswith(prefix)), None)
    if below is not None:
        raise ValueError(f"the input {below!r} is below the output prefix {prefix!r}")
