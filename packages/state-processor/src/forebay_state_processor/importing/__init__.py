"""Bring state along: write a version from rows, outside a job.

`first_version` makes an operator of tables, and `replacing` edits the version that a stopped query
opens next. Both check all rows first (`checked_tables`, `splitting`, `row_readers`). `subtask_part`
writes one subtask's key groups through its backend; `forebay_engine.versions.publishing` publishes
all parts as one version.
"""

from forebay_state_processor.importing.first_version import Imported, import_state
from forebay_state_processor.importing.replacing import Replaced, open_next, replace_state

__all__ = ["Imported", "Replaced", "import_state", "open_next", "replace_state"]
