"""Chooses the Python of Spark's workers where driver and workers share a machine.

Spark uses ``PYSPARK_PYTHON``, or else the ``python3`` on the path. If an editor or a notebook
starts the driver by its full path, that is another Python, which does not have Forebay.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from forebay_spark_runtime.driver.session import is_connect

_log = logging.getLogger(__name__)


def use_python_of_driver(session: Any) -> None:
    """Make a local session's workers run the driver's Python, unless the user chose another one.

    Logs a warning if the chosen Python belongs to another environment.
    """
    if is_connect(session) or not sys.executable:
        return
    context = session.sparkContext
    if not context.master.startswith("local") or context.master.startswith("local-cluster"):
        return
    chosen = os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python")
    if _is_of_driver(chosen or context.pythonExec):
        return
    if not chosen:
        context.pythonExec = sys.executable
        return
    _log.warning(
        "PYSPARK_PYTHON is %s, and this process runs %s: workers need Forebay and your modules "
        "there, too. Unset it, or set it to the Python of this environment",
        chosen,
        sys.executable,
    )


def _is_of_driver(python: str) -> bool:
    """Return whether ``python`` is the driver's Python, under any of its names."""
    found = shutil.which(python)
    if found is None:
        return False
    ours, theirs = Path(sys.executable).absolute(), Path(found).absolute()
    # Environments differ by their folders: their Pythons may be links to the same file.
    return theirs.parent.samefile(ours.parent) and theirs.samefile(ours)
