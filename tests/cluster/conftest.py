"""A cluster of two executors on this machine, each with a Python of its own: ``local-cluster``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
EXECUTOR = b"CoarseGrainedExecutorBackend"


class Driver:
    """A driver process, with its JVM and executors in a session of their own."""

    def __init__(self, folder, script, arguments, conf, environment):
        given = {"spark.master": "local-cluster[2,1,1024]", **(conf or {})}
        properties = folder / "spark.properties"
        properties.write_text("\n".join(f"{key} {value}" for key, value in given.items()))
        submit = f'--properties-file "{properties}" pyspark-shell'
        # What the tests' own session has set is for `local`.
        removed = {"SPARK_CONF_DIR", "JAVA_TOOL_OPTIONS"}
        inherited = {key: value for key, value in os.environ.items() if key not in removed}
        ours = {"PYSPARK_SUBMIT_ARGS": submit, "SPARK_WORKER_DIR": str(folder / "executors")}
        self._out, self._log = folder / "out", folder / "log"
        with self._out.open("wb") as out, self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / script), *map(str, arguments)],
                env={**inherited, **ours, **(environment or {})},
                cwd=folder,
                stdout=out,
                stderr=log,
                start_new_session=True,
            )

    @property
    def is_running(self):
        return self.process.poll() is None

    @property
    def log(self):
        return self._log.read_text(errors="replace")

    def end(self):
        """Wait for the end; the lines that it printed."""
        assert self.process.wait(600) == 0, self._out.read_text()[-4000:] + self.log[-8000:]
        return self._out.read_text().splitlines()

    def executors(self):
        """The pids of the executors' JVMs."""
        return [pid for pid in self._pids() if EXECUTOR in _read(f"/proc/{pid}/cmdline")]

    def workers_of(self, executor):
        """The pids of the Python processes below an executor."""
        below = {executor}
        for pid in sorted(self._pids()):
            if _parent(pid) in below:
                below.add(pid)
        return [pid for pid in sorted(below) if b"pyspark." in _read(f"/proc/{pid}/cmdline")]

    def close(self):
        if self.is_running:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def _pids(self):
        """All processes of the session."""
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        return [pid for pid in pids if _session(pid) == self.process.pid]


def _read(path):
    try:
        return Path(path).read_bytes()
    except OSError:  # it has exited
        return b""


def _fields(pid):
    """Return the fields of a process in /proc after its name: state, parent, group, session …"""
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def _parent(pid):
    fields = _fields(pid)
    return int(fields[1]) if fields else None


def _session(pid):
    fields = _fields(pid)
    return int(fields[3]) if fields else None


@pytest.fixture
def drive_cluster(tmp_path_factory):
    """Starts a script as a driver on two executors; nothing of it outlives the test."""
    started = []

    def start(script, *arguments, conf=None, environment=None):
        folder = tmp_path_factory.mktemp("cluster")
        started.append(Driver(folder, script, arguments, conf, environment))
        return started[-1]

    yield start
    for driver in started:
        driver.close()


@pytest.fixture(scope="session")
def run_on_cluster(tmp_path_factory):
    """Runs a script with a driver of its own on two executors; gives the lines that it prints."""

    def run(script, *arguments, conf=None, environment=None):
        folder = tmp_path_factory.mktemp("cluster")
        driver = Driver(folder, script, arguments, conf, environment)
        try:
            return driver.end()
        finally:
            driver.close()

    return run
