"""Nodes join and leave, and one hangs while its worker continues: a cluster of processes."""

from __future__ import annotations

import os
import signal

import attrs
import pytest
from compaction_ray_signals import Service, begun, go_on, install_plugin, job_doing, until

ray = pytest.importorskip("ray", reason="the extra [server] brings it")

from ray.cluster_utils import Cluster
from ray.util import list_named_actors

from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_compaction_ray.ray_server.cluster import (
    NAMESPACE,
    actor_name,
    connected,
    start_gateway,
)
from forebay_compaction_ray.ray_server.spec import GatewaySpec
from forebay_compaction_ray.worker.body import WorkerStorage
from forebay_state_api.contract.compaction_service import CompactionPhase
from forebay_state_api.storage.opening import open_storage

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

NODE = {"num_cpus": 1, "object_store_memory": 80 * 1024 * 1024}
# A hanging node counts as dead after some ten seconds; a slowly starting one has as long.
QUICK = {
    "health_check_initial_delay_ms": 5000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 3000,
    "health_check_failure_threshold": 3,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A head node without room for workers, on which the gateway runs."""
    folder = tmp_path_factory.mktemp("site")
    install_plugin(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        for name, value in QUICK.items():
            patch.setenv(f"RAY_{name}", str(value))
        started = Cluster(
            initialize_head=True, head_node_args={**NODE, "num_cpus": 0, "_system_config": QUICK}
        )
        try:
            with connected(started.address, cpus=0):
                yield started
        finally:
            started.shutdown()


def added(cluster, tries=3):
    """Start a node; again if it was not up within Ray's 30 s, on a machine that is busy."""
    try:
        return cluster.add_node(**NODE)
    except Exception as error:
        if tries == 1 or "timed out during startup" not in str(error):
            raise
    return added(cluster, tries - 1)


@pytest.fixture(scope="module")
def service(cluster, tmp_path_factory):
    state_dir = str(tmp_path_factory.mktemp("state"))
    storage = open_storage(state_dir, {})
    storage.put("query/op/data/in1", bytes(100))
    limits = GatewayLimits(ping_every_s=0.5, stall_timeout_s=60.0)
    storages = {"default": WorkerStorage(state_dir)}
    spec = GatewaySpec(host="127.0.0.1", port=0, workers=1, storages=storages, limits=limits)
    actor, address = start_gateway(spec, name="nodes", detached=True)
    found = Service(actor, address)
    found.storage = storage
    yield found
    found.gateway.close()


def result_of(service, given):
    here = service.storage.child(given.operator)
    names = [info.name for info in here.list(given.output_prefix)]
    return here.get(given.result_name) if given.result_name in names else None


def test_a_node_that_is_lost_and_another_that_comes(cluster, service, tmp_path):
    node = added(cluster)
    until(lambda: service.hello().workers == 1)
    given = job_doing(1, "wait", tmp_path)
    service.submit(given)
    begun(tmp_path, given)
    cluster.remove_node(node, allow_graceful=False)
    assert service.ended(given).phase is CompactionPhase.LOST
    again = job_doing(1, "", tmp_path, attempt=2)
    service.submit(again)
    assert service.gateway.poll(again.id, 0.1).phase is CompactionPhase.QUEUED
    node = added(cluster)
    assert service.ended(again, 60.0).phase is CompactionPhase.DONE
    cluster.remove_node(node, allow_graceful=False)
    until(lambda: service.hello().workers == 0)


def test_two_lost_nodes_do_not_ban_the_work_that_ran_there(cluster, service, tmp_path):
    service.storage.put("query/op/data/in2", bytes(100))
    first = job_doing(2, "wait", tmp_path)
    for attempt in (1, 2, 3):
        node = added(cluster)
        until(lambda: service.hello().workers == 1, 60.0)
        fresh = job_doing(2, "", tmp_path, attempt=attempt)
        given = attrs.evolve(first, id=fresh.id, output_prefix=fresh.output_prefix, attempt=attempt)
        service.submit(given)
        begun(tmp_path, given)
        if attempt == 3:
            break
        cluster.remove_node(node, allow_graceful=False)
        assert service.ended(given).phase is CompactionPhase.LOST
    go_on(tmp_path, given)
    assert service.ended(given).phase is CompactionPhase.DONE
    cluster.remove_node(node, allow_graceful=False)
    until(lambda: service.hello().workers == 0)


def test_a_zombie_that_finishes_late_never_goes_live(cluster, service, tmp_path):
    node = added(cluster)
    until(lambda: service.hello().workers == 1, 60.0)
    given = job_doing(1, "wait", tmp_path)
    service.submit(given)
    zombie = begun(tmp_path, given)
    raylet = node.all_processes["raylet"][0].process.pid
    os.kill(raylet, signal.SIGSTOP)  # Ray considers the node dead; the worker does not notice
    try:
        assert service.ended(given).phase is CompactionPhase.LOST
        os.kill(zombie, 0)  # it is alive
        other = added(cluster)
        again = job_doing(1, "", tmp_path, attempt=2)
        service.submit(again)
        assert service.ended(again, 60.0).phase is CompactionPhase.DONE
        live = result_of(service, again)
        assert result_of(service, given) is None
        go_on(tmp_path, given)
        until(lambda: result_of(service, given))  # the zombie has done all of its work
    finally:
        os.kill(raylet, signal.SIGCONT)
    assert service.gateway.poll(given.id).phase is CompactionPhase.LOST
    assert given.output_prefix != again.output_prefix
    assert given.output_prefix.encode() not in live
    assert result_of(service, again) == live
    cluster.remove_node(other, allow_graceful=False)


def test_a_detached_gateway_ends_when_it_is_stopped(service):
    """The last test of this gateway."""
    name = actor_name("nodes")
    assert {"name": name, "namespace": NAMESPACE} in list_named_actors(all_namespaces=True)
    service.gateway.call("Stop", {})
    until(lambda: name not in [a["name"] for a in list_named_actors(all_namespaces=True)])
