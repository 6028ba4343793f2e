"""A ``local-cluster`` of two executors on this machine, each with its own Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def run_on_cluster(tmp_path_factory):
    """Return a function that runs a script as a driver on two executors; it returns the output."""

    def run(script, *arguments, conf=None, environment=None):
        folder = tmp_path_factory.mktemp("cluster")
        given = {"spark.master": "local-cluster[2,1,1024]", **(conf or {})}
        properties = folder / "spark.properties"
        properties.write_text("\n".join(f"{key} {value}" for key, value in given.items()))
        submit = f'--properties-file "{properties}" pyspark-shell'
        # The settings of the tests' own session are for `local`.
        removed = {"SPARK_CONF_DIR", "JAVA_TOOL_OPTIONS"}
        inherited = {key: value for key, value in os.environ.items() if key not in removed}
        ours = {"PYSPARK_SUBMIT_ARGS": submit, "SPARK_WORKER_DIR": str(folder / "executors")}
        done = subprocess.run(
            [sys.executable, str(HERE / script), *map(str, arguments)],
            env={**inherited, **ours, **(environment or {})},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
        return done.stdout.splitlines()

    return run
