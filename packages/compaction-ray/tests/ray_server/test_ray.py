"""Real Ray on this machine, with actors, gRPC and files; processes are killed and stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import attrs
import pytest
from compaction_ray_signals import Service, begun, go_on, install_plugin, job_doing, until
from compaction_ray_toys import PATIENCE_S

ray = pytest.importorskip("ray", reason="the extra [server] brings it")

from forebay_compaction_ray.client.gateway import Gateway, UnreachableError
from forebay_compaction_ray.credentials import Credentials
from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_compaction_ray.ray_server.cluster import connected, free_port, start_gateway
from forebay_compaction_ray.ray_server.spec import GatewaySpec
from forebay_compaction_ray.worker.body import WorkerStorage
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionPhase
from forebay_state_api.errors import ConfigurationError

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """One Ray for all tests; its processes find the third party's plugin."""
    folder = tmp_path_factory.mktemp("site")
    install_plugin(folder)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        with connected("local", cpus=2):
            yield


LIMITS = GatewayLimits(
    ping_every_s=0.3, ping_misses=2, stall_timeout_s=6.0, abort_timeout_s=6.0, drain_timeout_s=60.0
)
"""A worker on a busy machine is late by seconds, and must not be killed for that."""


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    return tmp_path_factory.mktemp("state"), tmp_path_factory.mktemp("signals")


@pytest.fixture(scope="module")
def started(cluster, tmp_path_factory):
    from forebay_state_api.storage.opening import open_storage

    state_dir = str(tmp_path_factory.mktemp("state"))
    storage = open_storage(state_dir, {})
    for number in range(1, 10):
        storage.put(f"query/op/data/in{number}", bytes([number]) * 100)
    spec = GatewaySpec(
        host="127.0.0.1",
        port=0,
        workers=1,
        storages={"default": WorkerStorage(state_dir)},
        limits=LIMITS,
        metrics_port=free_port("127.0.0.1"),
    )
    actor, address = start_gateway(spec, name="tests", detached=False)
    found = Service(actor, address)
    found.spec, found.storage = spec, storage
    yield found
    found.gateway.close()


@pytest.fixture
def service(started):
    until(lambda: started.hello().workers >= 1 and started.hello().state == "serving")
    return started


@pytest.fixture
def signals(tmp_path):
    return tmp_path


def tried_again(service, signals):
    """Return the outcome of the next attempt at the job's work."""
    again = job_doing(1, "", signals, attempt=2)
    service.submit(again)
    return service.ended(again).phase


def has_result(service, given):
    names = [info.name for info in service.storage.child(given.operator).list(given.output_prefix)]
    return given.result_name in names


def test_no_ray_at_an_address():
    """The first test, because the others connect this process."""
    assert not ray.is_initialized()
    with (
        pytest.raises(ConfigurationError, match=r"no Ray at 127\.0\.0\.1:1"),
        connected("127.0.0.1:1", cpus=1),
    ):
        pass


def test_a_third_partys_format_is_compacted(service, signals):
    given = job_doing(1, "", signals)
    service.submit(given)
    assert service.ended(given).phase is CompactionPhase.DONE
    assert has_result(service, given)
    assert {"toy", "nothing-1"} <= set(service.hello().formats)


def test_corruption_is_told_as_what_it_is(service, signals):
    given = job_doing(1, "corrupt", signals)
    service.submit(given)
    status = service.ended(given)
    assert (status.phase, status.fault) == (CompactionPhase.FAILED, CompactionFault.CORRUPTION)


def test_a_worker_that_is_killed_loses_its_job_and_comes_back(service, signals):
    given = job_doing(1, "wait", signals)
    service.submit(given)
    pid = begun(signals, given)
    assert pid == service.pid_of(given.id)
    os.kill(pid, signal.SIGKILL)
    assert service.ended(given).phase is CompactionPhase.LOST
    assert tried_again(service, signals) is CompactionPhase.DONE
    assert " died: " in service.workers()[0]["error"]
    assert not has_result(service, given)


@pytest.mark.slow
def test_each_job_that_kills_its_worker_is_lost_with_it_and_another_worker_comes(service, signals):
    for attempt in (1, 2, 3):
        given = job_doing(1, "exit", signals, attempt=attempt)
        service.submit(given)
        assert service.ended(given).phase is CompactionPhase.LOST
        service.workers_up(1)
    assert " died: " in service.workers()[0]["error"]
    assert tried_again(service, signals) is CompactionPhase.DONE


def test_a_stopped_worker_is_noticed_killed_and_its_late_end_changes_nothing(service, signals):
    """A zombie is declared lost; its process continues later, but its output never goes live."""
    given = job_doing(1, "wait", signals)
    service.submit(given)
    pid = begun(signals, given)
    os.kill(pid, signal.SIGSTOP)
    status = service.ended(given)
    assert status.phase is CompactionPhase.LOST
    assert tried_again(service, signals) is CompactionPhase.DONE
    assert not has_result(service, given)


@pytest.mark.slow
def test_a_worker_that_makes_no_step_is_killed(service, signals):
    given = job_doing(1, "deaf", signals)
    service.submit(given)
    pid = begun(signals, given)
    assert service.ended(given).phase is CompactionPhase.LOST
    until(lambda: pid not in [w["pid"] for w in service.workers()])


def test_aborting_is_asked_for(service, signals):
    given = job_doing(1, "wait", signals)
    service.submit(given)
    pid = begun(signals, given)
    service.gateway.release(given.id)
    until(lambda: not service.workers()[0]["jobs"])
    assert service.workers()[0]["pid"] == pid


@pytest.mark.slow
def test_a_job_that_does_not_listen_is_aborted_by_killing(service, signals):
    given = job_doing(1, "deaf", signals)
    service.submit(given)
    pid = begun(signals, given)
    service.gateway.release(given.id)
    until(lambda: pid not in [w["pid"] for w in service.workers()])


def test_scaling_while_jobs_run(service, signals):
    """There is room for two workers."""
    one, two = job_doing(1, "wait", signals), job_doing(2, "wait", signals)
    service.submit(one)
    begun(signals, one)
    service.submit(two)
    service.gateway.call("Scale", {"workers": 5})
    begun(signals, two)
    assert service.hello().workers == 2
    assert len(service.workers()) == 5
    service.gateway.call("Scale", {"workers": 1})
    go_on(signals, one)
    go_on(signals, two)
    for given in (one, two):
        assert service.ended(given).phase is CompactionPhase.DONE
    until(lambda: len(service.workers()) == 1)
    until(lambda: service.hello().workers == 1)


@pytest.mark.slow
def test_a_ray_of_its_own_has_room_for_any_number_of_workers(service):
    """The Ray of such a gateway has as many CPUs as it had workers at the start."""
    roomy = attrs.evolve(service.spec, port=0, metrics_port=free_port("127.0.0.1"), worker_cpus=0.0)
    actor, address = start_gateway(roomy, name="roomy", detached=False)
    gateway = Gateway(address, Credentials, timeout_s=5.0)
    gateway.call("Scale", {"workers": 3})  # two CPUs have one worker already
    until(lambda: gateway.hello().workers == 3)
    orders_outlast_the_process(gateway, actor)
    assert b"_jobs_submitted_total " in page(roomy.metrics_port)
    gateway.call("Stop", {})
    ray.get(actor.stopped.remote(), timeout=PATIENCE_S)
    gateway.close()
    ray.kill(actor)


def orders_outlast_the_process(gateway, actor):
    """Kill the gateway's process, once after `scale` and once after `drain`."""

    def killed():
        boot = gateway.hello().boot
        os.kill(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)
        until(lambda: gateway.hello().boot != boot)

    killed()
    assert len(gateway.call("Describe", {})["worker_list"]) == 3
    assert gateway.hello().state == "serving"
    gateway.call("Drain", {})
    killed()
    assert gateway.hello().state == "draining"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_private_ray_listens_on_loopback_only(tmp_path):
    """Of all its processes, as the kernel lists them."""
    for name in ("home", "state"):
        (tmp_path / name).mkdir()
    environ = os.environ | {"HOME": str(tmp_path / "home")}
    environ["RAY_USAGE_STATS_ENABLED"] = "0"
    address = tmp_path / "address"
    start = [
        "start",
        "--port",
        "0",
        "--storage",
        str(tmp_path / "state"),
        "--address-file",
        address,
    ]
    forebay = str(Path(sys.executable).with_name("forebay"))
    with subprocess.Popen(
        [forebay, "compaction", *start], env=environ, stdout=subprocess.DEVNULL
    ) as started:
        try:
            until(lambda: started.poll() is not None or (address.exists() and address.read_text()))
            with contextlib.closing(
                Gateway(address.read_text().strip(), Credentials, timeout_s=5.0)
            ) as gateway:
                until(lambda: gateway.hello().workers == 1)
            found = listening(started.pid)
        finally:
            started.send_signal(signal.SIGINT)
    assert len(found) > 5
    assert set(found) <= set(LOOPBACK)


def listening(pid):
    """Return the address of each port of a process and its descendants, as the kernel writes it."""
    addresses = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == "0A":
                addresses[f"socket:[{inode}]"] = local.partition(":")[0]
    processes, found = {pid}, []
    for stat in sorted(Path("/proc").glob("[0-9]*/stat"), key=lambda path: int(path.parent.name)):
        with contextlib.suppress(OSError):  # it has exited
            if int(stat.read_text().rpartition(")")[2].split()[1]) in processes:
                processes.add(int(stat.parent.name))
    for one in processes:
        for descriptor in Path(f"/proc/{one}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(addresses.get(str(descriptor.readlink())))
    return [address for address in found if address is not None]


LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")
"""127.0.0.1, the same as IPv6, and ::1."""


def test_the_storages_can_be_checked(service):
    (worker,) = service.workers()
    asked = {"storage": "default", "worker": worker["id"]}
    found = service.gateway.call("Check", asked)["found"]
    assert found
    assert not any(found.values())


def test_prometheus_reads_the_gateway_on_the_port_of_its_own(service):
    assert b"\nforebay_compaction_jobs_submitted_total " in page(service.spec.metrics_port)


def page(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
        return answer.read()


@pytest.mark.slow  # by default: gateway/test_server.py
def test_a_metrics_port_that_is_taken_is_named(service):
    rival = attrs.evolve(service.spec, port=0)
    with pytest.raises(ConfigurationError, match=f"cannot listen on .*:{rival.metrics_port}"):
        start_gateway(rival, name="rival", detached=False)


def test_a_second_gateway_on_the_port_is_refused(service, cluster):
    port = int(service.address.rpartition(":")[2])
    rival = attrs.evolve(service.spec, port=port, metrics_port=None)
    with pytest.raises(ConfigurationError, match=f"listen on .*:{port}"):
        start_gateway(rival, name="rival", detached=False)
    with pytest.raises(ConfigurationError, match="is already running"):
        start_gateway(service.spec, name="tests", detached=False)


def test_a_gateway_that_is_killed_comes_back_where_it_was(service, signals):
    given = job_doing(1, "wait", signals)
    service.submit(given)
    begun(signals, given)
    boot = service.hello().boot
    os.kill(gateway_pid(service), signal.SIGKILL)
    assert service.ended(given).phase is CompactionPhase.UNKNOWN
    until(lambda: service.hello().workers == 1)
    assert service.hello().boot != boot
    assert tried_again(service, signals) is CompactionPhase.DONE


def gateway_pid(service):
    return ray.get(service.actor.__ray_call__.remote(lambda _: os.getpid()))


def test_stopping_waits_for_jobs(service, signals):
    """The last test of this gateway."""
    given = job_doing(1, "wait", signals)
    service.submit(given)
    begun(signals, given)
    service.gateway.call("Stop", {})
    until(lambda: service.hello().state == "draining")
    go_on(signals, given)
    until(lambda: has_result(service, given))
    ray.get(service.actor.stopped.remote(), timeout=PATIENCE_S)
    with pytest.raises(UnreachableError):
        Gateway(service.address, Credentials, timeout_s=2.0).hello()
