"""The client against real gRPC on loopback: what it does when everything goes well, and else."""

from __future__ import annotations

import contextlib
import socket
import threading

import attrs
import grpc
import pytest
from compaction_ray_toys import (
    ALL,
    PATIENCE_S,
    Clock,
    Concatenation,
    ThreadPool,
    job,
    running,
)

from forebay_compaction_ray.client.endpoints import Endpoints
from forebay_compaction_ray.client.service import RemoteCompactionService
from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_compaction_ray.gateway.server import ServerSecurity
from forebay_compaction_ray.options import ClientSecurity, RemoteOptions
from forebay_compaction_ray.wire import SERVICE, decode, pack
from forebay_state_api.backend import StateFile
from forebay_state_api.compaction import CompactionFault, CompactionPhase, CompactionResult
from forebay_state_api.errors import (
    ConfigurationError,
    CorruptStateError,
    PluginError,
    StorageError,
)
from forebay_state_api.sealed import seal, unseal
from forebay_state_api.storage import ObjectNotFoundError

QUICK = GatewayLimits(ping_every_s=0.05, stall_timeout_s=5.0)


@pytest.fixture
def remote():
    """The compactor of the workers; that of the client is another object."""
    return Concatenation()


@pytest.fixture
def own():
    return Concatenation()


@pytest.fixture
def gateway(state_dir, storage, remote):
    pool = ThreadPool({"default": state_dir}, {"toy": remote})
    with running(pool, storages=["default"], limits=QUICK) as started:
        yield started


@pytest.fixture
def client_of(storage, own):
    with contextlib.ExitStack() as stack:

        def make(*addresses, **given):
            given.setdefault("min_bytes", 0)
            given.setdefault("connect_timeout_s", 5.0)
            options = RemoteOptions(addresses=addresses, **given)
            client = RemoteCompactionService(storage, options, find_compactor=lambda _: own)
            return stack.enter_context(client)

        yield make


def ended(client, given):
    client.submit(given)
    return client.poll(given.id, PATIENCE_S)


def begun(client, remote):
    """A job that runs, and waits for ``remote.go``."""
    remote.go.clear()
    given = job()
    client.submit(given)
    assert remote.began.wait(PATIENCE_S)
    return given


def result_of(storage, given):
    here = storage.child(given.operator)
    return CompactionResult.from_plain(unseal(here.get(given.result_name)))


def dead_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@contextlib.contextmanager
def black_hole():
    """Accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


# -- all is well --------------------------------------------------------------------------------


def test_a_job_is_done_by_a_worker_and_verified(client_of, gateway, storage, remote, own):
    client, given = client_of(gateway.address), job()
    assert ended(client, given).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs) == (1, 0)
    (output,) = result_of(storage, given).outputs
    assert storage.child(given.operator).get(output.name) == b"\x01" * 100
    assert own.verified == [output.name]
    client.verify(given, result_of(storage, given))
    assert own.verified == [output.name], "what was verified on the way is not read again"


def test_local_and_remote_write_the_same(client_of, gateway, storage):
    away, here = job(1), job(1)
    assert ended(client_of(gateway.address), away).phase is CompactionPhase.DONE
    assert ended(client_of(dead_address()), here).phase is CompactionPhase.DONE
    names = [result_of(storage, given).outputs[0].name for given in (away, here)]
    one, two = (storage.child(away.operator).get(name) for name in names)
    assert one == two


def test_small_jobs_stay_here(client_of, gateway, remote, own):
    client = client_of(gateway.address, min_bytes=101)
    assert ended(client, job()).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs) == (0, 1)


def test_a_second_submission_is_none(client_of, gateway, remote):
    client, given = client_of(gateway.address), job()
    client.submit(given)
    assert ended(client, given).phase is CompactionPhase.DONE
    assert remote.runs == 1


def test_nothing_is_opened_before_the_first_job(client_of):
    before = threading.active_count()
    client_of(dead_address())
    assert threading.active_count() == before


def test_another_process_finds_the_job_at_the_gateway(client_of, gateway, remote):
    first = client_of(gateway.address)
    given = begun(first, remote)
    second = client_of(gateway.address)
    assert second.poll(given.id).phase is CompactionPhase.RUNNING
    remote.go.set()
    assert second.poll(given.id, PATIENCE_S).phase is CompactionPhase.DONE


def test_a_gateway_forgets_a_job_once_its_owner_knows_that_it_is_done(client_of, gateway):
    client, given = client_of(gateway.address), job(1)
    assert ended(client, given).phase is CompactionPhase.DONE
    assert gateway.on_loop(gateway.core.describe)["remembered"] == 0
    assert client.poll(given.id).phase is CompactionPhase.DONE
    assert client_of(gateway.address).poll(given.id).phase is CompactionPhase.UNKNOWN


def test_a_gateway_remembers_a_job_that_another_process_asks_for(client_of, gateway, remote):
    first = client_of(gateway.address)
    given = begun(first, remote)
    first.close()
    remote.go.set()
    for _ in range(2):
        second = client_of(gateway.address)
        assert second.poll(given.id, PATIENCE_S).phase is CompactionPhase.DONE


def test_a_job_that_nobody_knows_is_unknown(client_of, gateway):
    assert client_of(gateway.address).poll("nobody").phase is CompactionPhase.UNKNOWN
    assert client_of(dead_address()).poll("nobody").phase is CompactionPhase.UNKNOWN


def test_releasing_stops_a_job_also_for_another_process(client_of, gateway, remote):
    first = client_of(gateway.address)
    given = begun(first, remote)
    client_of(gateway.address).release(given.id)
    assert first.poll(given.id, PATIENCE_S).phase is CompactionPhase.LOST


def test_aborting(client_of, gateway, remote):
    client = client_of(gateway.address)
    given = begun(client, remote)
    client.abort(given.id)
    assert client.poll(given.id, PATIENCE_S).phase is CompactionPhase.ABORTED


def test_jobs_go_on_when_the_process_ends(client_of, gateway, remote):
    client = client_of(gateway.address)
    given = begun(client, remote)
    client.close()
    remote.go.set()
    assert client_of(gateway.address).poll(given.id, PATIENCE_S).phase is CompactionPhase.DONE


# -- no gateway ---------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["fallback", "fail"])
def test_a_dead_port(client_of, own, strategy):
    client = client_of(dead_address(), fall_back=strategy == "fallback")
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
    """Somebody took them away on purpose, so it is nothing to fail for."""
    Endpoints(storage).remove(gateway.address)
    client = client_of(gateway.address, fall_back=strategy == "fallback")
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
    client = client_of(gateway.address, fall_back=False, request_retries=0)
    given = job()
    client.submit(given)
    assert remote.began.wait(PATIENCE_S)
    Endpoints(storage).remove(gateway.address)
    client._endpoints._read_s = None
    gateway.on_loop(lambda: gateway.core.abort(given.id))
    assert client.poll(given.id, PATIENCE_S).phase is CompactionPhase.LOST
    assert ended(client, job(attempt=2)).phase is CompactionPhase.DONE
    assert own.runs == 1


def test_a_gateway_that_is_back_is_told_what_happened_meanwhile(client_of, gateway, storage):
    client = client_of(dead_address(), request_retries=1)
    assert ended(client, job(1)).phase is CompactionPhase.DONE
    Endpoints(storage).add(gateway.address)
    client._endpoints._read_s = None
    for attempt in (1, 2):
        assert ended(client, job(2, attempt=attempt)).phase is CompactionPhase.DONE
    told = gateway.on_loop(gateway.core.describe)["metrics"]
    events = {
        name[len('client_events_total{event="') : -2]: n
        for name, n in told.items()
        if name.startswith("client_events")
    }
    assert told['client_fallbacks_total{cause="unreachable"}'] == 1
    assert events["submitted"] == 3
    assert events["retries"] == 1
    assert events["unreachable"] >= 1
    assert told["entries_in_total"] == 2
    assert told['entries_dropped_total{why="expired"}'] == 0


def test_gauges_tell_of_jobs_under_way_and_of_gateways_that_answer(client_of, gateway, remote):
    dead = dead_address()
    client = client_of(gateway.address, dead, request_retries=0)
    up = [f'endpoint_up{{endpoint="{address}"}}' for address in (gateway.address, dead)]
    assert client.metrics() == {"inflight": 0, up[0]: 1, up[1]: 1}
    given = begun(client, remote)
    assert client.metrics()["inflight"] == 1
    remote.go.set()
    assert client.poll(given.id, PATIENCE_S).phase is CompactionPhase.DONE
    for number in range(2, 8):  # every other one asks the dead port first, until it is left alone
        assert ended(client, job(number)).phase is CompactionPhase.DONE
    told = client.metrics()
    assert (told["inflight"], told[up[0]], told[up[1]]) == (0, 1, 0)
    assert told["done"] == 7


def test_a_stale_result_is_counted_and_told(client_of, gateway):
    client = client_of(gateway.address)
    given = job(1)
    assert ended(client, given).phase is CompactionPhase.DONE
    client.discard(given.id)
    assert client.poll(given.id).phase is CompactionPhase.UNKNOWN
    assert ended(client, job(2)).phase is CompactionPhase.DONE
    told = gateway.on_loop(gateway.core.describe)["metrics"]
    assert told['client_events_total{event="stale"}'] == 1


# -- a gateway that refuses ---------------------------------------------------------------------


def test_a_wrong_token_is_never_hidden(state_dir, storage, remote, client_of, own):
    pool = ThreadPool({"default": state_dir}, {"toy": remote})
    security = ServerSecurity(token="right")
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


# -- jobs that fail -----------------------------------------------------------------------------


def test_corruption_is_never_hidden(client_of, gateway, remote, own):
    remote.fault = CorruptStateError("an input is not what was written")
    status = ended(client_of(gateway.address), job())
    assert (status.phase, status.fault) == (CompactionPhase.FAILED, CompactionFault.CORRUPTION)
    assert "not what was written" in status.message
    assert own.runs == 0


def test_a_fault_of_the_compactor_is_never_hidden(client_of, gateway, remote, own):
    remote.fault = ZeroDivisionError("oops")
    assert ended(client_of(gateway.address), job()).fault is CompactionFault.PERMANENT
    assert own.runs == 0


def test_outputs_that_are_not_what_the_result_says(client_of, gateway, remote, storage):
    remote.damage = True
    client, given = client_of(gateway.address), job()
    status = ended(client, given)
    assert (status.phase, status.fault) == (CompactionPhase.FAILED, CompactionFault.CORRUPTION)
    assert client.counters["verify_failures"] == 1
    another = client_of(gateway.address)
    with pytest.raises(CorruptStateError):
        another.verify(given, result_of(storage, given))


@pytest.mark.parametrize(
    ("data", "phase"),
    [
        (seal({"outputs": []})[:-1], CompactionPhase.LOST),  # torn: it counts as not there
        (seal({"outputs": []})[:-1] + b"?", CompactionPhase.FAILED),
        (seal({"outputs": [{"whatever": 1}]}), CompactionPhase.FAILED),
        (b"something else", CompactionPhase.FAILED),
    ],
)
def test_a_result_that_cannot_be_decoded(client_of, gateway, remote, storage, data, phase):
    client = client_of(gateway.address)
    given = begun(client, remote)
    storage.child(given.operator).put(given.result_name, data)
    remote.go.set()
    status = client.poll(given.id, PATIENCE_S)
    assert status.phase is phase
    if phase is CompactionPhase.FAILED:
        assert status.fault is CompactionFault.CORRUPTION


def test_a_job_that_was_given_up_is_tried_again_when_the_query_is(client_of, gateway, remote):
    clock = Clock()
    client = client_of(dead_address(), fall_back=False, request_retries=0)
    client._clock = clock
    given = job(attempt=7)
    assert ended(client, given).fault is CompactionFault.UNAVAILABLE
    clock.now += 29
    assert client.poll(given.id).fault is CompactionFault.UNAVAILABLE
    clock.now += 1
    assert client.poll(given.id).phase is CompactionPhase.UNKNOWN
    back = client_of(gateway.address, fall_back=False, request_retries=0)
    assert ended(back, job(attempt=8)).phase is CompactionPhase.DONE


@pytest.mark.parametrize("strategy", ["fallback", "fail"])
def test_what_fails_in_passing_is_submitted_again_until_the_retries_are_used_up(
    client_of, gateway, remote, own, strategy
):
    remote.fault = StorageError("throttled", transient=True)
    client = client_of(gateway.address, request_retries=1, fall_back=strategy == "fallback")
    assert ended(client, job(attempt=1)).phase is CompactionPhase.LOST
    second = ended(client, job(attempt=2))
    if strategy == "fail":
        assert second.fault is CompactionFault.UNAVAILABLE
        assert "throttled" in second.message
        return
    assert second.phase is CompactionPhase.LOST
    assert ended(client, job(attempt=3)).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs) == (2, 1)
    assert client.counters.all()["fallbacks:attempts"] == 1


def test_a_job_that_takes_too_long_is_stopped_and_lost(client_of, gateway, remote):
    remote.go.clear()
    client = client_of(gateway.address, request_timeout_s=0.3)
    status = ended(client, job())
    assert status.phase is CompactionPhase.LOST
    assert "not done after" in status.message


def test_a_gateway_that_began_again_knows_nothing(state_dir, storage, remote, client_of):
    pool = ThreadPool({"default": state_dir}, {"toy": remote})
    with running(pool, storages=["default"], limits=QUICK) as first:
        client = client_of(first.address)
        given = begun(client, remote)
        port = int(first.address.rpartition(":")[2])
    with running(pool, storages=["default"], limits=QUICK, port=port):
        status = client.poll(given.id, PATIENCE_S)
    assert status.phase is CompactionPhase.LOST


def test_a_missing_input(client_of, gateway, own):
    given = job(inputs=[StateFile(name="data/gone", size=1, range=ALL, meta={"entries": 1})])
    status = ended(client_of(gateway.address), given)
    assert status.phase is CompactionPhase.LOST  # the toy does not tell missing from unreachable
    assert own.runs == 0


def test_a_compactor_that_writes_elsewhere_or_deletes(client_of, gateway, remote, storage):
    class Vandal(Concatenation):
        def compact(self, given, here, cancelled):
            with contextlib.suppress(PluginError):  # it swallows the refusal, and is found out
                here.delete(["data/in1"])
            here.put("data/in1", b"mine")

    remote.compact = Vandal().compact
    status = ended(client_of(gateway.address), job())
    assert status.fault is CompactionFault.PERMANENT
    assert storage.get("query/op/data/in1") == b"\x01" * 100


# -- peers of other versions, and no peers ------------------------------------------------------


@contextlib.contextmanager
def scripted(**answers):
    """A server that answers what it is told to, whatever that is."""
    server = grpc.server(thread_pool=__import__("concurrent.futures").futures.ThreadPoolExecutor(4))
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
    with scripted(Hello=lambda request, context: __import__("msgpack").packb(newer)) as address:
        status = ended(client_of(address), job())
    assert status.fault is CompactionFault.PERMANENT
    assert "upgrade" in status.message
    assert own.runs == 0


def test_a_newer_gateway_that_does(client_of):
    def submit(request, context):
        plain = decode(request)["job"]
        view = {"job_id": plain["id"], "phase": "failed", "fault": "corruption", "news": 1}
        return __import__("msgpack").packb({"v": 9, "min_v": 1, "boot": "b", **view})

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


# -- settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({}, "address"),
        ({"address": "nowhere"}, "ip:port"),
        ({"address": "host:99999"}, "ip:port"),
        ({"address": "a:1", "token-file": "/does/not/exist"}, "cannot be read"),
        ({"address": "a:1", "tls-cert": "/x"}, "needs its key"),
        ({"address": "a:1", "nonsense": 1}, "nonsense"),
    ],
)
def test_options_that_cannot_work(storage, given, match):
    with pytest.raises(ConfigurationError, match=match):
        RemoteCompactionService.open(storage, given)
