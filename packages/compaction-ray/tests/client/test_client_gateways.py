"""The client and its gateways: absent, refusing, or speaking another protocol."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import attrs
import grpc
import msgpack
import pytest
from compaction_ray_toys import (
    PATIENCE_S,
    QUICK,
    ThreadPool,
    begun,
    black_hole,
    dead_address,
    ended,
    job,
    running,
)

from forebay_compaction_ray.client.endpoints import Endpoints
from forebay_compaction_ray.gateway.security import ServerSecurity
from forebay_compaction_ray.options import ClientSecurity
from forebay_compaction_ray.protocol import SERVICE, decode, pack
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionPhase
from forebay_state_api.contract.object_storage import ObjectNotFoundError

# -- no gateway ---------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["fallback", "fail"])
def test_a_dead_port(client_of, own, strategy):
    client = client_of(dead_address(), failure_strategy=strategy)
    status = ended(client, job())
    if strategy == "fallback":
        assert status.phase is CompactionPhase.DONE
        assert own.runs == client.counters["fallbacks"] == 1
    else:
        assert (status.phase, status.fault) == (
            CompactionPhase.FAILED,
            CompactionFault.UNAVAILABLE,
        )
        assert "UNAVAILABLE" in status.message
        assert own.runs == 0


def test_a_gateway_that_accepts_and_never_answers(client_of, own):
    with black_hole() as address:
        client = client_of(address, connect_timeout_s=0.1)
        assert ended(client, job()).phase is CompactionPhase.DONE
        assert own.runs == 1
        assert ended(client, job(2)).phase is CompactionPhase.DONE
        gateway = client._gateways[address]
        assert not gateway.breaker.closed


def test_the_next_address_is_asked(client_of, gateway, remote):
    for _ in range(2):
        client = client_of(dead_address(), gateway.address, dead_address())
        assert ended(client, job()).phase is CompactionPhase.DONE
    assert remote.runs == 2


def test_endpoints_change_while_the_job_runs(client_of, gateway, storage, remote, own):
    client = client_of(dead_address(), request_retries=0)
    clock = client._endpoints
    assert ended(client, job(1)).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs) == (0, 1)
    Endpoints(storage).add(gateway.address)
    clock._read_s = None
    assert ended(client, job(2)).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs) == (1, 1)
    Endpoints(storage).remove(*client.addresses())
    clock._read_s = None
    assert ended(client, job(3)).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs) == (1, 2)
    assert client.addresses() == ()


@pytest.mark.parametrize("strategy", ["fallback", "fail"])
def test_when_all_gateways_were_removed_jobs_run_here(client_of, gateway, storage, own, strategy):
    """They were removed on purpose, so that is no reason to fail."""
    Endpoints(storage).remove(gateway.address)
    client = client_of(gateway.address, failure_strategy=strategy)
    assert ended(client, job(1, attempt=1)).phase is CompactionPhase.DONE
    assert ended(client, job(2, attempt=9)).phase is CompactionPhase.DONE
    assert own.runs == 2
    Endpoints(storage).add(gateway.address)
    client._endpoints._read_s = None
    assert ended(client, job(3)).phase is CompactionPhase.DONE
    assert own.runs == 2, "a gateway has returned"


def test_a_job_that_is_lost_when_all_gateways_were_removed_fails_nobody(
    client_of, gateway, storage, remote, own
):
    remote.go.clear()
    client = client_of(gateway.address, failure_strategy="fail", request_retries=0)
    given = job()
    client.submit(given)
    assert remote.began.wait(PATIENCE_S)
    Endpoints(storage).remove(gateway.address)
    client._endpoints._read_s = None
    gateway.on_loop(lambda: gateway.core.abort(given.id))
    assert client.poll(given.id, PATIENCE_S).phase is CompactionPhase.LOST
    assert ended(client, job(attempt=2)).phase is CompactionPhase.DONE
    assert own.runs == 1


# -- reported events ----------------------------------------------------------------------------


def test_a_gateway_that_is_back_is_told_what_happened_meanwhile(client_of, gateway, storage):
    client = client_of(dead_address(), request_retries=1)
    assert ended(client, job(1)).phase is CompactionPhase.DONE
    Endpoints(storage).add(gateway.address)
    client._endpoints._read_s = None
    for attempt in (1, 2):
        assert ended(client, job(2, attempt=attempt)).phase is CompactionPhase.DONE
    metrics = gateway.on_loop(gateway.core.describe)["metrics"]
    events = {
        name[len('client_events_total{event="') : -2]: n
        for name, n in metrics.items()
        if name.startswith("client_events")
    }
    assert metrics['client_fallbacks_total{cause="unreachable"}'] == 1
    assert events["submitted"] == 3
    assert events["retries"] == 1
    assert events["unreachable"] >= 1
    assert metrics["entries_in_total"] == 2
    assert metrics['entries_dropped_total{why="expired"}'] == 0


def test_what_is_counted_is_declared(client_of):
    with pytest.raises(KeyError, match="hiccup"):
        client_of(dead_address()).counters.add("hiccup")


def test_gauges_tell_of_jobs_under_way_and_of_gateways_that_answer(client_of, gateway, remote):
    dead = dead_address()
    client = client_of(gateway.address, dead, request_retries=0)
    up = [f'endpoint_up{{endpoint="{address}"}}' for address in (gateway.address, dead)]
    assert client.metrics() == {"inflight": 0, up[0]: 1, up[1]: 1}
    given = begun(client, remote)
    assert client.metrics()["inflight"] == 1
    remote.go.set()
    assert client.poll(given.id, PATIENCE_S).phase is CompactionPhase.DONE
    for number in range(2, 8):  # every other job tries the dead port first, until the breaker opens
        assert ended(client, job(number)).phase is CompactionPhase.DONE
    metrics = client.metrics()
    assert (metrics["inflight"], metrics[up[0]], metrics[up[1]]) == (0, 1, 0)
    assert metrics["done"] == 7


def test_a_stale_result_is_counted_and_told(client_of, gateway):
    client = client_of(gateway.address)
    given = job(1)
    assert ended(client, given).phase is CompactionPhase.DONE
    client.discard(given.id)
    assert client.poll(given.id).phase is CompactionPhase.UNKNOWN
    assert ended(client, job(2)).phase is CompactionPhase.DONE
    metrics = gateway.on_loop(gateway.core.describe)["metrics"]
    assert metrics['client_events_total{event="stale"}'] == 1


# -- a gateway that refuses ---------------------------------------------------------------------


def test_a_wrong_token_is_never_hidden(state_dir, storage, remote, client_of, own):
    pool = ThreadPool({"default": state_dir}, {"toy": remote})
    security = ServerSecurity(tokens=("right",))
    with running(pool, storages=["default"], security=security) as gateway:
        status = ended(client_of(gateway.address), job())
        assert (status.phase, status.fault) == (CompactionPhase.FAILED, CompactionFault.PERMANENT)
        assert "token" in status.message
        wrong = client_of(gateway.address, security=ClientSecurity(token="wrong"))
        assert ended(wrong, job(2)).fault is CompactionFault.PERMANENT
        right = client_of(gateway.address, security=ClientSecurity(token="right"))
        assert ended(right, job(3)).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs) == (1, 0)


def test_an_unknown_format_is_never_hidden(client_of, gateway, own):
    given = job(file_format="parquet")
    status = ended(client_of(gateway.address), given)
    assert (status.phase, status.fault) == (CompactionPhase.FAILED, CompactionFault.PERMANENT)
    assert "parquet" in status.message
    assert own.runs == 0


def test_an_unknown_storage_is_never_hidden(client_of, gateway, own):
    status = ended(client_of(gateway.address, storage="elsewhere"), job())
    assert status.fault is CompactionFault.PERMANENT
    assert own.runs == 0


def test_a_full_queue_is_waited_for_and_then_left(state_dir, storage, remote, client_of, own):
    remote.go.clear()
    pool = ThreadPool({"default": state_dir}, {"toy": remote})
    limits = attrs.evolve(QUICK, queue=0)
    with running(pool, storages=["default"], limits=limits, workers=0) as gateway:
        client = client_of(gateway.address, queue_timeout_s=0.5)
        assert ended(client, job()).phase is CompactionPhase.DONE
        assert gateway.core.metrics.value("jobs_rejected_total", reason="queue_full") >= 1
        assert client.counters.all()["fallbacks:refused"] == 1
    assert (remote.runs, own.runs) == (0, 1)


def test_a_job_that_waits_too_long_in_the_queue_comes_back(
    state_dir, storage, remote, client_of, own
):
    pool = ThreadPool({"default": state_dir}, {"toy": remote})
    with running(pool, storages=["default"], limits=QUICK, workers=0) as gateway:
        client = client_of(gateway.address, queue_timeout_s=0.3)
        assert ended(client, job()).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs) == (0, 1)
    assert client.counters.all()["fallbacks:queue"] == client.counters["fallbacks"] == 1


def test_a_draining_gateway_gets_nothing(client_of, gateway, remote, own):
    gateway.on_loop(gateway.core.drain)
    assert ended(client_of(gateway.address), job()).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs) == (0, 1)


# -- peers of other versions, and no peers ------------------------------------------------------


@contextlib.contextmanager
def scripted(**answers):
    """Start a server that gives scripted answers."""
    server = grpc.server(ThreadPoolExecutor(4))
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(answer) for name, answer in answers.items()
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


SERVING = {"state": "serving", "boot": "b"}


def test_a_newer_gateway_that_no_longer_understands_us(client_of, own):
    newer = {**decode(pack(SERVING)), "v": 9, "min_v": 8}
    with scripted(Hello=lambda request, context: msgpack.packb(newer)) as address:
        status = ended(client_of(address), job())
    assert status.fault is CompactionFault.PERMANENT
    assert "upgrade" in status.message
    assert own.runs == 0


def test_a_newer_gateway_that_does(client_of):
    def submit(request, context):
        plain = decode(request)["job"]
        view = {"job_id": plain["id"], "phase": "failed", "fault": "corruption", "news": 1}
        return msgpack.packb({"v": 9, "min_v": 1, "boot": "b", **view})

    with scripted(Hello=lambda r, c: pack(SERVING), Submit=submit) as address:
        assert ended(client_of(address), job()).fault is CompactionFault.CORRUPTION


@pytest.mark.parametrize("garbage", [b"", b"\xc1", b"\x93\x01\x02\x03", pack({})[:-3], b"x" * 100])
def test_something_else_listens_there(client_of, own, garbage):
    with scripted(Hello=lambda request, context: garbage) as address:
        assert ended(client_of(address), job()).phase is CompactionPhase.DONE
    assert own.runs == 1


def test_no_service_of_ours(client_of, own):
    with scripted() as address:
        assert ended(client_of(address), job()).fault is CompactionFault.PERMANENT
    assert own.runs == 0


def test_a_submission_without_an_answer_is_not_done_here_as_it_is(client_of, own):
    arrived = threading.Event()

    def submit(request, context):
        arrived.set()
        context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")

    with scripted(Hello=lambda r, c: pack(SERVING), Submit=submit) as address:
        status = ended(client_of(address), job())
    assert arrived.is_set()
    assert status.phase is CompactionPhase.LOST
    assert own.runs == 0, "a worker may be writing below the same prefix"


def test_a_gateway_that_says_done_without_a_result(client_of, storage):
    def submit(request, context):
        plain = decode(request)["job"]
        return pack({"job_id": plain["id"], "phase": "done", "boot": "b"})

    with scripted(Hello=lambda r, c: pack(SERVING), Submit=submit) as address:
        given = job()
        assert ended(client_of(address), given).phase is CompactionPhase.LOST
    with pytest.raises(ObjectNotFoundError):
        storage.child(given.operator).get(given.result_name)
