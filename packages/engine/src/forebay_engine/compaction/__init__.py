"""Run compaction jobs: in this process by default, with one service per process and storage.

Backends submit jobs to a service and do not use this package. A service runs a job with `run_here`,
or with `perform` if it has statuses of its own: both claim the job's prefix, give the run a folder,
write heartbeats, and store the result last.
"""

from typing import TYPE_CHECKING

from forebay_state_api.lazy_names import import_on_first_use

if TYPE_CHECKING or not import_on_first_use(__name__):
    from forebay_engine.compaction.local_service import (
        FindCompactor as FindCompactor,
        fault_of as fault_of,
        run_here as run_here,
    )
    from forebay_engine.compaction.performing import (
        TakenPrefixError as TakenPrefixError,
        perform as perform,
    )
