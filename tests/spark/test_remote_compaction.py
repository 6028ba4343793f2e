"""Streaming queries whose compactions run on a service of Ray actors, started by its command."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from forebay_spark_runtime import keyed
from forebay_state_api import KeyedProcessFunction, ListStateDescriptor, ValueStateDescriptor

pytest.importorskip("ray", reason="the extra [server] brings it")

from forebay_compaction_ray import Endpoints
from forebay_compaction_ray.client.gateway import Gateway, UnreachableError
from forebay_compaction_ray.options import ClientSecurity
from forebay_state_api.storage import open_storage

pytestmark = [pytest.mark.spark, pytest.mark.ray, pytest.mark.timeout(170)]

SCHEMA = "user string, n long"
USERS = [f"user{n}" for n in range(12)]
BATCHES = 15
PATIENCE_S = 60.0


class Kinds(KeyedProcessFunction):
    """Counts the rows of a key in two kinds of state, which must agree."""

    def open(self, context):
        self.value = context.get_state(ValueStateDescriptor("value", int, default=0))
        self.list = context.get_list_state(ListStateDescriptor("list", int))

    async def process_element(self, row, ctx):
        n = await self.value.async_value() + 1
        await self.value.async_update(n)
        await self.list.async_add(n)
        kept = [one async for one in await self.list.async_get()]
        assert kept == list(range(1, n + 1))
        yield row.user, n


class Service:
    """``forebay compaction start`` on this machine."""

    def __init__(self, folder):
        self.folder = folder
        address = folder / "address"
        environment = {**os.environ, "HOME": str(folder), "RAY_AUTH_MODE": "disabled"}
        forebay = [sys.executable, "-c", "from forebay_state_api.cli import main; main()"]
        start = ["compaction", "start", "--workers", "1", "--port", "0"]
        places = ["--storage", str(folder), "--address-file", str(address)]
        self.process = subprocess.Popen([*forebay, *start, *places], env=environment)
        until(lambda: address.exists() and address.read_text())
        self.address = address.read_text().strip()
        self.gateway = Gateway(self.address, ClientSecurity(), timeout_s=10.0)
        until(lambda: self.described()["workers"] == 1)

    def described(self):
        return self.gateway.call("Describe", {})

    def finished(self):
        return self.described()["metrics"].get('jobs_finished_total{outcome="done"}', 0)

    def idle(self):
        """What earlier queries have left behind is done."""
        described = self.described()
        return not described["queue"] and not described["running"]

    def close(self):
        self.gateway.close()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE_S)


def until(what):
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            if what():
                return
        except UnreachableError:
            pass  # not up yet, or not up again
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    found = Service(tmp_path_factory.mktemp("service"))
    yield found
    found.close()


@pytest.fixture
def remote(stage, service):
    """A stage whose state the service can reach."""
    stage.state = service.folder  # one storage of the service; queries have folders of their own
    for name, value in {
        "state.dir": str(service.folder),
        "state.backend": "lsm",
        "lsm.max-runs": "8",
        "compaction.service": "ray",
        "compaction.remote.address": service.address,
        "compaction.remote.min-bytes": "0",
        "compaction.remote.connect-timeout": "10s",
    }.items():
        stage.spark.conf.set(f"spark.forebay.{name}", value)
    return stage


def run(stage, uid):
    for _ in range(BATCHES):
        stage.put(*[{"user": user} for user in USERS])
    stage.run(keyed(stage.source(), "user", uid=uid, parallelism=2).process(Kinds(), SCHEMA))


def expected(runs=1):
    return sorted((user, n) for user in USERS for n in range(1, runs * BATCHES + 1))


def dead_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_results_of_the_service_are_installed(remote, service):
    before = service.finished()
    run(remote, "remote")
    assert remote.rows(SCHEMA) == expected()
    assert service.finished() > before
    operator = remote.operators()["remote"]
    assert list(operator.glob("data/*/compaction-*/result"))


def test_a_worker_that_is_killed_again_and_again_changes_nothing(remote, service):
    for _ in range(BATCHES):
        remote.put(*[{"user": user} for user in USERS])
    query = remote.start(
        keyed(remote.source(), "user", uid="killed", parallelism=2).process(Kinds(), SCHEMA)
    )
    kills = 0
    while query.isActive and kills < 3:
        pids = [w["pid"] for w in service.described()["worker_list"] if w["pid"]]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # not noticed yet
                os.kill(pid, signal.SIGKILL)
                kills += 1
        query.awaitTermination(1)
    query.awaitTermination()
    assert kills
    assert remote.rows(SCHEMA) == expected()
    until(lambda: service.described()["workers"] == 1)


def test_without_a_gateway_the_job_compacts_itself(remote, service):
    until(service.idle)
    remote.spark.conf.set("spark.forebay.compaction.remote.address", dead_address())
    before = service.finished()
    run(remote, "alone")
    assert remote.rows(SCHEMA) == expected()
    assert list(remote.operators()["alone"].glob("data/*/compaction-*/result"))
    assert service.finished() == before


def test_without_a_gateway_the_task_fails_if_it_is_told_to(remote):
    remote.spark.conf.set("spark.forebay.compaction.remote.address", dead_address())
    remote.spark.conf.set("spark.forebay.compaction.remote.request.failure-strategy", "fail")
    remote.spark.conf.set("spark.forebay.compaction.remote.request.retries", "0")
    with pytest.raises(Exception, match=r"failure-strategy is 'fail'.*UNAVAILABLE"):
        run(remote, "failing")


def test_a_gateway_that_is_added_is_used_by_a_running_query(remote, service):
    remote.spark.conf.set("spark.forebay.compaction.remote.address", dead_address())
    endpoints = Endpoints(open_storage(str(service.folder), {}))
    before = service.finished()
    endpoints.add(service.address)
    try:
        run(remote, "added")
        assert remote.rows(SCHEMA) == expected()
        assert service.finished() > before
    finally:
        endpoints.remove(service.address)
