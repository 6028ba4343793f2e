"""Streaming queries whose compactions run on a service of Ray actors, started by its command.

By default a query on Spark has its results from the service, and what goes wrong is tested in
compaction-ray, with the engine and lsm in place of Spark: workers that die and gateways that are
gone in ``test_troubles.py``, ``failure-strategy`` in ``test_stops.py``. Workers and a gateway of
Ray are killed in ``ray_server/test_ray.py``, a worker that hangs is replaced in
``gateway/test_worker_set.py``, and addresses change in ``client/test_client_gateways.py``.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest

from forebay_spark_runtime import keyed
from forebay_state_api import KeyedProcessFunction, ListStateDescriptor, ValueStateDescriptor

pytest.importorskip("ray", reason="the extra [server] brings it")

from forebay_compaction_ray import Endpoints
from forebay_compaction_ray.client.gateway import Gateway, UnreachableError
from forebay_compaction_ray.credentials import Credentials
from forebay_engine.versions.choosing.reader import open_version
from forebay_engine.versions.cleaning.janitor import Janitor
from forebay_engine.versions.format.epochs import list_epochs
from forebay_engine.versions.format.manifest import is_named
from forebay_state_api.contract.file_names import data_version
from forebay_state_api.storage.opening import open_storage

pytestmark = [pytest.mark.spark, pytest.mark.ray, pytest.mark.timeout(300)]

SCHEMA = "user string, n long"
USERS = [f"user{n}" for n in range(12)]
BATCHES = 6
MOST_BATCHES = 400
"""After this many batches something that is waited for will never come."""
PATIENCE_S = 100.0
DONE = 'forebay_compaction_jobs_finished_total{outcome="done"}'


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
        forebay = [sys.executable, "-c", "from forebay_cli.main import main; main()"]
        start = ["compaction", "start", "--workers", "1", "--port", "0", "--stall-timeout", "15"]
        places = ["--storage", str(folder), "--address-file", str(address)]
        self.process = subprocess.Popen([*forebay, *start, *places], env=environment)
        until(lambda: (address.exists() and address.read_text()) or self.ended())
        self.address = address.read_text().strip()
        self.gateway = Gateway(self.address, Credentials, timeout_s=10.0)
        until(lambda: self.described()["workers"] == 1)

    def ended(self):
        """Fail at once if the command has exited."""
        assert self.process.poll() is None, "the command has exited"

    def described(self):
        return self.gateway.call("Describe", {})

    def submitted(self):
        return self.described()["metrics"]["forebay_compaction_jobs_submitted_total"]

    def finished(self):
        return self.described()["metrics"].get(DONE, 0)

    def pids(self):
        """Return the process ids of the running workers."""
        return [w["pid"] for w in self.described()["worker_list"] if w["pid"]]

    def gateway_pid(self):
        """Return the gateway's process, among the processes that the command has started."""
        parents = {}
        for status in Path("/proc").glob("[0-9]*/status"):
            with contextlib.suppress(OSError):
                fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
                parents[int(status.parent.name)] = int(fields["PPid"])
        found = [pid for pid in parents if "GatewayActor" in _title(pid)]
        (pid,) = [pid for pid in found if self.process.pid in _ancestors(pid, parents)]
        return pid

    def idle(self):
        """Return whether the jobs of earlier queries are done."""
        described = self.described()
        return not described["queue"] and not described["running"]

    def close(self):
        self.gateway.close()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE_S)


def _title(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def _ancestors(pid, parents):
    while pid := parents.get(pid, 0):
        yield pid


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
    stage.state = service.folder  # one storage for the service; each query has its own folder
    for name, value in {
        "state.dir": str(service.folder),
        "state.backend": "lsm",
        "lsm.max-runs": "4",
        "compaction.service": "ray",
        "compaction.remote.address": service.address,
        "compaction.remote.min-bytes": "0",
    }.items():
        stage.spark.conf.set(f"spark.forebay.{name}", value)
    return stage


def run(stage, uid):
    for _ in range(BATCHES):
        stage.put(*[{"user": user} for user in USERS])
    stage.run(keyed(stage.source(), "user", uid=uid, parallelism=2).process(Kinds(), SCHEMA))


def run_until_done(stage, uid, service, before, runs=0):
    """Run a query until the service has done one of its compactions; return the number of runs.

    On a busy machine workers that come up late lose theirs to the job itself.
    """
    deadline = time.monotonic() + PATIENCE_S
    while service.finished() <= before:
        assert time.monotonic() < deadline
        run(stage, uid)
        runs += 1
    return runs


def expected(runs=1):
    return sorted((user, n) for user in USERS for n in range(1, runs * BATCHES + 1))


def orphans(operator):
    """Return the files that the janitor leaves although the kept versions do not need them."""
    storage = open_storage(str(operator), {})
    manifests = operator.glob("versions/*/*/manifest-*")
    last = max((1 << 48) - 1 - int(path.parent.parent.name, 16) for path in manifests)
    run_key = list_epochs(storage).newest().run_key
    janitor = Janitor(storage, run_key=run_key, retention=1, min_age=timedelta(0))
    for _ in range(3):
        swept = janitor.sweep(last)
    needed = set()
    for version in range(swept.base, last + 1):
        with open_version(storage, uid=operator.name, version=version) as reader:
            needed.update(*(manifest.names for manifest in reader.manifests))
    names = [info.name for info in storage.list("data")]
    return [
        name
        for name in names
        if not is_named(name, needed) and (data_version(name) or 0) < swept.base
    ]


def dead_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def test_results_of_the_service_are_installed(remote, service):
    before = service.finished()
    runs = run_until_done(remote, "remote", service, before)
    assert remote.rows(SCHEMA) == expected(runs)
    operator = remote.operators()["remote"]
    assert list(operator.glob("data/*/compaction-*/result"))


@pytest.mark.slow
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
        query.awaitTermination(0.5)
    query.awaitTermination()
    assert kills
    assert remote.rows(SCHEMA) == expected()
    until(lambda: service.described()["workers"] == 1)


@pytest.mark.slow
def test_without_a_gateway_the_job_compacts_itself(remote, service):
    until(service.idle)
    remote.spark.conf.set("spark.forebay.compaction.remote.address", dead_address())
    before, runs, deadline = service.finished(), 0, time.monotonic() + PATIENCE_S
    while not runs or not list(remote.operators()["alone"].glob("data/*/compaction-*/result")):
        assert time.monotonic() < deadline
        run(remote, "alone")
        runs += 1
    assert remote.rows(SCHEMA) == expected(runs)
    assert service.finished() == before


@pytest.mark.slow
def test_without_a_gateway_the_task_fails_on_request(remote):
    remote.spark.conf.set("spark.forebay.compaction.remote.address", dead_address())
    remote.spark.conf.set("spark.forebay.compaction.remote.request.failure-strategy", "fail")
    remote.spark.conf.set("spark.forebay.compaction.remote.queue-timeout", "200ms")

    def run_until_it_fails():  # a run may end before its compactions give up
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            run(remote, "failing")

    with pytest.raises(Exception, match=r"failure-strategy is 'fail'.*UNAVAILABLE"):
        run_until_it_fails()


@pytest.mark.slow
def test_a_worker_that_hangs_is_replaced_and_nothing_is_lost(remote, service):
    until(service.idle)
    until(service.pids)
    before, (pid,) = service.finished(), service.pids()
    os.kill(pid, signal.SIGSTOP)
    try:
        run(remote, "hung")
        until(lambda: service.pids() not in ([], [pid]))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert remote.rows(SCHEMA) == expected()
    runs = run_until_done(remote, "hung", service, before, runs=1)
    assert remote.rows(SCHEMA) == expected(runs)
    until(service.idle)
    assert orphans(remote.operators()["hung"]) == []


@pytest.mark.slow
def test_a_gateway_that_is_killed_comes_back_and_nothing_is_lost(remote, service):
    boot, before = service.described()["boot"], service.finished()
    for _ in range(BATCHES):
        remote.put(*[{"user": user} for user in USERS])
    query = remote.start(
        keyed(remote.source(), "user", uid="orphaned", parallelism=2).process(Kinds(), SCHEMA)
    )
    until(lambda: service.finished() > before or not query.isActive)
    os.kill(service.gateway_pid(), signal.SIGKILL)
    query.awaitTermination()
    assert remote.rows(SCHEMA) == expected()
    until(lambda: service.described()["boot"] != boot and service.described()["workers"] == 1)
    # In this life of the gateway; clients ask again after seconds.
    runs = run_until_done(remote, "orphaned", service, 0, runs=1)
    assert remote.rows(SCHEMA) == expected(runs)
    until(service.idle)
    assert orphans(remote.operators()["orphaned"]) == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_gateways_are_added_and_removed_while_a_query_runs(remote, service):
    """The query begins without a reachable gateway, and learns of each change later.

    A removed gateway may still get requests under way, and completes its jobs.
    """
    until(service.idle)
    remote.spark.conf.set("spark.forebay.compaction.remote.address", dead_address())
    uid = f"changing-{secrets.token_hex(4)}"  # all tests share one state directory
    endpoints = Endpoints(open_storage(str(service.folder), {}))
    counted = keyed(remote.source(), "user", uid=uid, parallelism=2)
    writer = counted.process(Kinds(), SCHEMA).writeStream.format("json")
    writer = writer.option("path", str(remote.output))
    query = writer.option("checkpointLocation", str(remote.checkpoint)).start()
    batches = 0

    def locally():
        """Return the number of results that the service did not write."""
        operator = remote.operators()[uid]
        return len(list(operator.glob("data/*/compaction-*/result"))) - (service.finished() - at)

    def feed_until(what):
        nonlocal batches
        while not what():
            assert batches < MOST_BATCHES
            remote.put(*[{"user": user} for user in USERS])
            query.processAllAvailable()
            batches += 1

    def feed_until_it_is_alone():
        """Wait for two more compactions in the job, and none in the gateway."""
        sent = None
        while sent != service.submitted():
            sent, before = service.submitted(), locally()
            feed_until(lambda before=before: locally() >= before + 2)

    try:
        at = service.finished()
        feed_until(lambda: batches)
        feed_until_it_is_alone()
        endpoints.add(service.address)
        before = service.finished()
        feed_until(lambda: service.finished() >= before + 2)
        endpoints.remove(service.address)
        feed_until_it_is_alone()
    finally:
        query.stop()
        endpoints.remove(service.address)
    rows = [(user, n) for user in USERS for n in range(1, batches + 1)]
    assert remote.rows(SCHEMA) == sorted(rows)
