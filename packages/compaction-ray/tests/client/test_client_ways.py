"""The client and a bad way to its gateway: slow, silent, broken; credentials that change."""

from __future__ import annotations

import socket
import threading

import pytest
import trustme
from compaction_ray_network import way_to
from compaction_ray_toys import (
    PATIENCE_S,
    QUICK,
    Clock,
    RunningGateway,
    ThreadPool,
    counted,
    dead_address,
    ended,
    happened,
    job,
    running,
)

from forebay_compaction_ray.client.gateway import Gateway, UnreachableError
from forebay_compaction_ray.credentials import Credentials
from forebay_compaction_ray.options import client_credentials
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionPhase


@pytest.fixture
def way(gateway):
    with way_to(gateway.address) as way:
        yield way


@pytest.mark.long
def test_a_slow_way_is_used(client_of, way, remote, own):
    client = client_of(way.address)
    way.delay_s = 0.4  # longer than an attempt to connect used to take
    assert client.gateways.at(way.address).hello()
    way.delay_s = 0.05
    assert ended(client, job()).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs, way.accepted) == (1, 0, 1)


@pytest.mark.slow  # by default: the same without TLS
def test_a_slow_way_is_used_over_tls(client_of, state_dir, storage, remote, own, pem_files):
    content = {name: (pem_files / name).read_bytes() for name in ("ca.pem", "one.pem", "one.key")}
    security = Credentials(certificate=content["one.pem"], key=content["one.key"])
    pool = ThreadPool({"default": state_dir}, {"toy": remote})
    with (
        running(pool, storages=["default"], limits=QUICK, security=security) as gateway,
        way_to(gateway.address) as way,
    ):
        way.delay_s = 0.15
        client = client_of(way.address, security=lambda: Credentials(ca=content["ca.pem"]))
        assert client.gateways.at(way.address).hello()
        way.delay_s = 0.02
        assert ended(client, job()).phase is CompactionPhase.DONE
        assert way.accepted == 1
    assert (remote.runs, own.runs) == (1, 0)


@pytest.mark.long
def test_a_connection_that_falls_silent_is_given_up(client_of, way, remote, own):
    clock = Clock()
    client = client_of(way.address, clock=clock)
    assert ended(client, job(1)).phase is CompactionPhase.DONE
    way.freeze()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client.gateways.at(way.address), "_timeout_s", 0.3)
        assert ended(client, job(2)).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs) == (1, 1)
    clock.now += 1.0  # its rest
    assert ended(client, job(3)).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs, way.accepted) == (2, 1, 2)


@pytest.mark.long
def test_a_running_job_is_followed_over_another_connection(client_of, way, remote, own):
    client = client_of(way.address, failure_strategy="fail")
    remote.go.clear()
    given = job()
    client.submit(given)
    assert remote.began.wait(PATIENCE_S)
    way.cut()
    remote.go.set()
    assert client.poll(given.id, PATIENCE_S).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs) == (1, 0)


def test_the_rest_of_a_gateway_doubles_until_it_answers(monkeypatch):
    clock = Clock()
    gateway = Gateway(dead_address(), Credentials, timeout_s=5.0, clock=clock)
    exchange, calls = gateway._exchange, []

    def spied(*given):
        calls.append(len(calls))
        if len(calls) > 1:  # only one of several callers tries it
            with pytest.raises(UnreachableError, match="cannot be reached"):
                gateway.hello()
        return exchange(*given)

    monkeypatch.setattr(gateway, "_exchange", spied)
    for attempt, rest_s in enumerate((1.0, 2.0, 4.0, 8.0, 10.0, 10.0), 1):
        with pytest.raises(UnreachableError):
            gateway.hello()
        assert len(calls) == attempt
        clock.now += rest_s - 0.1
        with pytest.raises(UnreachableError, match="cannot be reached"):
            gateway.hello()
        assert len(calls) == attempt
        clock.now += 0.2
    gateway.close()


@pytest.mark.long
def test_fail_outlasts_the_restart_of_a_gateway(client_of, state_dir, storage, remote, own):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))  # and does not listen
        port = probe.getsockname()[1]
        client = client_of(f"127.0.0.1:{port}", failure_strategy="fail")
        given = job()
        client.submit(given)
        while not happened(client, "unreachable"):
            client.poll(given.id, 0.01)
    pool = ThreadPool({"default": state_dir}, {"toy": remote})
    with running(pool, storages=["default"], limits=QUICK, port=port):
        assert client.poll(given.id, PATIENCE_S).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs) == (1, 0)


@pytest.mark.parametrize("strategy", ["fallback", "fail"])
def test_the_time_in_the_queue_of_the_client_counts(
    client_of, state_dir, storage, remote, own, strategy
):
    clock = Clock()
    pool = ThreadPool({"default": state_dir}, {"toy": remote})
    with running(pool, storages=["default"], limits=QUICK, workers=0) as gateway:
        client = client_of(gateway.address, clock=clock, failure_strategy=strategy)
        client._threads._most = 1  # a second job waits for the thread of the first
        held = threading.Event()
        client._threads.do(lambda: held.wait(PATIENCE_S))
        given = job()
        client.submit(given)
        clock.now += 31.0
        held.set()
        status = client.poll(given.id, PATIENCE_S)
        assert counted(gateway.core, "jobs_submitted") == 0
    if strategy == "fail":
        assert status.fault is CompactionFault.UNAVAILABLE
    else:
        assert status.phase is CompactionPhase.DONE
        assert client.counters.all()["fallbacks:queue"] == 1


@pytest.mark.long
def test_many_jobs_of_a_process_wait_together(client_of, state_dir, storage, remote, own):
    pool = ThreadPool({"default": state_dir}, {"toy": remote})
    with running(pool, storages=["default"], limits=QUICK, workers=0) as gateway:
        client = client_of(gateway.address, queue_timeout_s=3600.0)
        jobs = [job(1 + n % 9, now_us=n) for n in range(12)]
        for given in jobs:
            client.submit(given)
        while counted(gateway.core, "jobs_submitted") < len(jobs):
            client.poll(jobs[-1].id, 0.01)


# -- credentials --------------------------------------------------------------------------------


@pytest.fixture
def guarded(state_dir, storage, remote):
    pool = ThreadPool({"default": state_dir}, {"toy": remote})
    security = Credentials(tokens=("old",))
    gateway = RunningGateway(pool, storages=["default"], limits=QUICK, security=security)
    yield gateway
    gateway.close()


def test_the_token_is_read_again_before_a_gateway_is_given_up(
    client_of, guarded, tmp_path, remote, own
):
    path = tmp_path / "token"
    path.write_text("old")
    security = client_credentials(token_file=str(path))
    client = client_of(guarded.address, security=security, failure_strategy="fail")
    assert ended(client, job(1)).phase is CompactionPhase.DONE
    path.write_text("new")
    guarded.security = Credentials(tokens=("new",))
    assert ended(client, job(2)).phase is CompactionPhase.DONE
    assert happened(client, "refused") == 0
    path.unlink()  # it is being replaced
    guarded.security = Credentials(tokens=("newer",))
    given = job(3)
    client.submit(given)
    while not happened(client, "refused"):
        client.poll(given.id, 0.01)
    path.write_text("newer")
    assert client.poll(given.id, PATIENCE_S).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs) == (3, 0)


def test_certificates_are_read_again_when_a_handshake_fails(
    client_of, state_dir, storage, remote, own, pem_files, tmp_path
):
    ca = tmp_path / "ca.pem"
    trustme.CA().cert_pem.write_to_path(ca)  # another one
    security = Credentials(
        certificate=(pem_files / "one.pem").read_bytes(),
        key=(pem_files / "one.key").read_bytes(),
    )
    pool = ThreadPool({"default": state_dir}, {"toy": remote})
    with running(pool, storages=["default"], limits=QUICK, security=security) as gateway:
        client = client_of(gateway.address, security=client_credentials(ca=str(ca)))
        assert ended(client, job(1)).phase is CompactionPhase.DONE
        assert own.runs == 1
        client = client_of(gateway.address, security=client_credentials(ca=str(ca)))
        ca.write_bytes((pem_files / "ca.pem").read_bytes())
        assert ended(client, job(2)).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs) == (1, 1)
