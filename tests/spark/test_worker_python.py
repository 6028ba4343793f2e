"""How Spark starts its Python workers and speaks to them.

A job may be started without activating its environment, as in editors and notebooks. The job of
``test_third_party.py`` is started in this way too, without an ordered wait.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow]

JOBS = Path(__file__).parents[1] / "jobs"
JOB = JOBS / "by_path.py"
PIPELINED = "spark.python.udf.pipelined.enabled=true"
SOCKETS = "spark.python.unix.domain.socket.enabled=true"
NO_SIZES = "spark.sql.execution.arrow.maxBytesPerBatch=2147483647"


def test_workers_run_the_python_that_started_the_job(tmp_path):
    """Another ``python3`` is first on the path."""
    (tmp_path / "python3").write_text("#!/bin/sh\necho another python >&2\nexit 3\n")
    (tmp_path / "python3").chmod(0o755)
    env = {name: value for name, value in os.environ.items() if "PYSPARK_" not in name}
    env |= {
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "PYSPARK_SUBMIT_ARGS": os.environ["PYSPARK_SUBMIT_ARGS"],
    }
    job = [sys.executable, str(JOB)]
    done = subprocess.run(job, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    "settings",
    [[PIPELINED], [SOCKETS], [NO_SIZES], [PIPELINED, SOCKETS, NO_SIZES]],
    ids=["pipelined", "Unix sockets", "no sizes", "all"],
)
def test_settings_of_newer_versions_change_no_result(tmp_path, settings):
    """Older versions ignore them. The job checks its own output."""
    job = [sys.executable, str(JOBS / "worker_settings.py"), str(tmp_path), *settings]
    done = subprocess.run(job, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
