"""Spark's other metric sinks: StatsD, JMX, a server that hangs up, and one that is down."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).parents[1] / "jobs" / "metered.py"
SINK = "spark.metrics.conf.*.sink"
ROWS = "forebay_keyed_rows_in_total"


@contextlib.contextmanager
def running(folder, *settings):
    """Run the job until the block ends; it must then end well."""
    with (
        (folder / "job.log").open("w") as log,
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(folder), "0", *settings],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            assert process.stdout.readline() == "ready\n", (folder / "job.log").read_text()
            yield
            process.stdin.write("end\n")
            process.stdin.close()
            assert process.wait(100) == 0, (folder / "job.log").read_text()
        finally:
            process.kill()


def nobody_listens():
    """Return a port that was closed."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


def hangs_up(listening):
    """Accept a connection and close it at once."""
    listening.accept()[0].close()


def test_statsd_and_jmx_show_the_figures_next_to_sinks_that_fail(tmp_path):
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as statsd,
        socket.create_server(("127.0.0.1", 0)) as graphite,
    ):
        statsd.bind(("127.0.0.1", 0))
        statsd.settimeout(100)
        graphite.settimeout(100)
        settings = {
            "statsd.class": "org.apache.spark.metrics.sink.StatsdSink",
            "statsd.host": "127.0.0.1",
            "statsd.port": statsd.getsockname()[1],
            "statsd.period": 1,
            "jmx.class": "org.apache.spark.metrics.sink.JmxSink",
            "graphite.class": "org.apache.spark.metrics.sink.GraphiteSink",
            "graphite.host": "127.0.0.1",
            "graphite.port": graphite.getsockname()[1],
            "graphite.period": 1,
            "down.class": "org.apache.spark.metrics.sink.GraphiteSink",
            "down.host": "127.0.0.1",
            "down.port": nobody_listens(),
            "down.period": 1,
        }
        with running(tmp_path, *(f"{SINK}.{name}={value}" for name, value in settings.items())):
            hangs_up(graphite)
            hangs_up(graphite)
            sent = ""
            while ROWS not in sent or sent.split(":", 1)[1].startswith("0|"):
                sent = statsd.recv(65_536).decode()
    assert "visits_heap" in sent or "visits_lsm" in sent
    assert sent.endswith("|g"), "all figures are gauges there"
    assert ROWS in (tmp_path / "beans").read_text()
