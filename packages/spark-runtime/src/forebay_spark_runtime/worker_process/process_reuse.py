"""Shows whether this Python worker runs further tasks."""

from __future__ import annotations

import os


def process_stays() -> bool:
    """Return whether Spark keeps the process for other tasks (``spark.python.worker.reuse``).

    Otherwise it ends the process at once after a task, without a chance to clean up.
    """
    return bool(os.environ.get("SPARK_REUSE_WORKER"))
