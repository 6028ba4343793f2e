"""Bring state along: write a version from rows, outside a job.

`replacing` edits the version that a stopped query opens next. `part` writes one subtask's key
groups through its backend; `versions.imported` publishes all parts as one version.
"""

from forebay_state_api.importing.replacing import Replaced, replace_state

__all__ = ["Replaced", "replace_state"]
