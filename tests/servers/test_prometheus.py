"""Prometheus loads the files of `monitoring/` and scrapes a running job through them."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import trustme

from .programs import FOREBAY, address, running

yaml = pytest.importorskip("yaml", reason="the extra [server] brings it with Ray")

pytestmark = [pytest.mark.servers, pytest.mark.spark, pytest.mark.timeout(400)]

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "monitoring"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture
def job(tmp_path):
    """The port of a running job's web UI."""
    port = free_port()
    script = ROOT / "tests" / "jobs" / "metered.py"
    with (
        (tmp_path / "job.log").open("w") as log,
        subprocess.Popen(
            [sys.executable, str(script), str(tmp_path), str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        assert process.stdout.readline() == "ready\n", (tmp_path / "job.log").read_text()
        yield port
        process.stdin.write("end\n")
        process.stdin.close()
        assert process.wait(100) == 0, (tmp_path / "job.log").read_text()


@pytest.fixture
def prometheus(job, tmp_path):
    """The address of a Prometheus that scrapes the job each second."""
    with scraping(scrape_job("spark", f"127.0.0.1:{job}"), tmp_path) as address:
        yield address


def scrape_job(name, *targets):
    """Return a scrape job of the repository, for other targets and each second."""
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    (job,) = [one for one in config["scrape_configs"] if one["job_name"] == name]
    job["static_configs"] = [{"targets": list(targets)}]
    return job | {"scrape_interval": "1s", "scrape_timeout": "1s"}


@contextlib.contextmanager
def scraping(job, tmp_path):
    """Run a Prometheus with one scrape job; yield its address."""
    config = {"scrape_configs": [job], "rule_files": [str(MONITORING / "alerts.yml")]}
    path = tmp_path / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    with (tmp_path / "prometheus.log").open("w") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={path}",
                f"--storage.tsdb.path={tmp_path / 'tsdb'}",
                f"--web.listen-address={address}",
            ],
            stderr=log,
        )
        try:
            yield f"http://{address}"
        finally:
            process.terminate()
            process.wait(100)


def asked(address, expression):
    """Return the series that an expression finds now."""
    query = urllib.parse.urlencode({"query": expression})
    with urllib.request.urlopen(f"{address}/api/v1/query?{query}", timeout=30) as answer:
        return json.load(answer)["data"]["result"]


def eventually(address, expression, holds):
    until = time.monotonic() + 100
    while True:
        try:
            if holds(found := asked(address, expression)):
                return found
        except OSError:  # it is still starting
            found = None
        assert time.monotonic() < until, (expression, found)
        time.sleep(0.5)


def promtool(*arguments):
    """Run ``promtool check``, and return what it says if it refuses the file."""
    command = ["promtool", "check", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def test_promtool_accepts_the_rules():
    assert promtool("rules", MONITORING / "alerts.yml") == ""


def test_promtool_accepts_the_scrape_jobs(tmp_path):
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text())
    for job in config["scrape_configs"]:
        if "authorization" in job:  # promtool opens the files, which are at the reader's place
            (tmp_path / "token").write_text("token")
            job["authorization"]["credentials_file"] = str(tmp_path / "token")
            trustme.CA().cert_pem.write_to_path(tmp_path / "ca.pem")
            job["tls_config"]["ca_file"] = str(tmp_path / "ca.pem")
    path = tmp_path / "prometheus.yml"
    path.write_text(yaml.safe_dump(config))
    assert promtool("config", path) == ""


def test_a_running_job_is_scraped(prometheus):
    name = "forebay_keyed_rows_in_total"
    series = eventually(prometheus, name, lambda found: len(found) == 2)
    labels = [
        {key: one["metric"][key] for key in ("application", "query", "uid")} for one in series
    ]
    assert sorted(labels, key=str) == [
        {"application": "metered", "query": "my_clicks_7d571f", "uid": uid}
        for uid in ("visits_heap_04e8b7", "visits_lsm_17b420")
    ]
    assert "type" not in series[0]["metric"]
    phases = asked(prometheus, 'forebay_keyed_phase_seconds_total{uid="visits_heap_04e8b7"}')
    assert {"open", "function", "commit_manifest"} <= {one["metric"]["phase"] for one in phases}
    eventually(prometheus, f"sum(rate({name}[30s])) > 1", bool)
    quantile = (
        "histogram_quantile(0.99, sum by (uid, le) "
        "(rate(forebay_keyed_state_read_seconds_bucket[30s]))) > 0"
    )
    (read,) = eventually(prometheus, quantile, bool)
    assert read["metric"]["uid"] == "visits_lsm_17b420", "heap reads nothing"


def test_an_ordered_wait_is_scraped(prometheus):
    eventually(prometheus, "sum(rate(forebay_wait_rows_total[30s])) > 1", bool)
    (rows,) = asked(prometheus, "forebay_wait_rows_total")
    labels = {key: rows["metric"][key] for key in ("application", "query", "uid")}
    assert labels == {"application": "metered", "query": "my_clicks_7d571f", "uid": "greet"}
    quantile = "histogram_quantile(0.5, rate(forebay_wait_try_seconds_bucket[30s])) >= 0"
    eventually(prometheus, quantile, lambda found: len(found) == 1)


def test_every_expression_can_be_evaluated(prometheus):
    eventually(prometheus, "forebay_keyed_commits_total", bool)
    with urllib.request.urlopen(f"{prometheus}/api/v1/rules", timeout=30) as answer:
        groups = json.load(answer)["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) >= 10
    board = json.loads((MONITORING / "grafana-keyed.json").read_text())
    for panel in board["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "30s")
            expression = expression.replace("$query", ".*").replace("$uid", ".*")
            asked(prometheus, expression)


@pytest.fixture
def watched(tmp_path):
    """A job that commits when a line asks for it, and its state directory."""
    state = tmp_path / "state"
    script = ROOT / "tests" / "jobs" / "watched.py"
    with running([str(script), str(state)], tmp_path / "job.log") as process:
        assert process.stdout.readline() == "ready\n", (tmp_path / "job.log").read_text()
        yield process, state


def certified(folder):
    """Return the options for TLS on loopback; the CA is in the folder, as ``ca.pem``."""
    ca = trustme.CA()
    ca.cert_pem.write_to_path(folder / "ca.pem")
    issued = ca.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(folder / "console.pem")
    return ["--tls-cert", str(folder / "console.pem"), "--tls-key", str(folder / "console.pem")]


def test_two_consoles_beside_a_job_are_scraped(watched, tmp_path):
    job, state = watched
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    command = ["-c", FOREBAY, "console", "--state-dir", str(state), "--port", "0"]
    command += ["--token-file", str(token), *certified(tmp_path)]
    logs = [tmp_path / f"console-{number}.log" for number in range(2)]
    with running(command, logs[0]) as one, running(command, logs[1]) as other:
        targets = [address(one, logs[0]), address(other, logs[1])]
        scrape = scrape_job("forebay-console", *(at.removeprefix("https://") for at in targets))
        scrape["authorization"]["credentials_file"] = str(token)
        scrape["tls_config"]["ca_file"] = str(tmp_path / "ca.pem")
        with scraping(scrape, tmp_path) as prometheus:
            eventually(prometheus, 'up{job="forebay-console"} == 1', lambda all_: len(all_) == 2)
            for _ in range(3):
                job.stdin.write("\n")
                job.stdin.flush()
                assert job.stdout.readline() == "done\n"
            counted = "forebay_keyed_commits_total == 3 * 4"  # micro-batches, subtasks
            each = len(targets) * 2  # operators
            eventually(prometheus, counted, lambda found: len(found) == each)
