"""The server: access control, and answers to peers that do not speak its protocol."""

from __future__ import annotations

import asyncio
import socket
import urllib.request

import grpc
import pytest
import trustme
from compaction_ray_toys import Concatenation, ScriptedStorages, ThreadPool, running
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from forebay_compaction_ray.client.gateway import Gateway, UnreachableError
from forebay_compaction_ray.credentials import Credentials
from forebay_compaction_ray.gateway import server
from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_compaction_ray.gateway.metrics import Metrics
from forebay_compaction_ray.gateway.security import REREAD_S, SecurityFiles, check_exposure
from forebay_compaction_ray.gateway.server import reachable
from forebay_compaction_ray.options import client_credentials
from forebay_compaction_ray.protocol import MESSAGE_BYTES, SERVICE, RefusedError, pack
from forebay_compaction_ray.reloaded_value import ReloadedValue
from forebay_state_api.errors import ConfigurationError

LIMITS = GatewayLimits(ping_every_s=0.05)


@pytest.fixture
def serve(state_dir):
    pool = ThreadPool({"default": state_dir}, {"toy": Concatenation()})

    def start(**security):
        return running(pool, storages=["default"], limits=LIMITS, security=Credentials(**security))

    return start


def asking(address, **security):
    return Gateway(address, lambda: Credentials(**security), timeout_s=100.0)


def raw(address, method, data, timeout=100):
    with grpc.insecure_channel(address) as channel:
        return channel.unary_unary(method)(data, timeout=timeout)


def test_a_token(serve):
    with serve(tokens=("right",)) as gateway:
        for wrong in ((), ("wrong",), ("right ",)):
            with pytest.raises(RefusedError, match="token"):
                asking(gateway.address, tokens=wrong).hello()
        assert asking(gateway.address, tokens=("right",)).hello().state == "serving"


def test_the_way_from_one_token_to_the_next(serve, tmp_path):
    file, now = tmp_path / "tokens", [0.0]
    file.write_text("old\n")
    files = SecurityFiles(token_file=str(file))
    current = ReloadedValue(files.read, REREAD_S, clock=lambda: now[0])

    def admits(gateway, content=None):
        if content is not None:
            file.write_text(content)
            now[0] += REREAD_S
        found = []
        for token in ("old", "new"):
            try:
                found.append(bool(asking(gateway.address, tokens=(token,)).hello()))
            except RefusedError:
                found.append(False)
        return found

    with serve(tokens=("old",)) as gateway:
        gateway.server._security = current
        assert admits(gateway) == [True, False]
        assert admits(gateway, "old\nnew\n") == [True, True]
        assert admits(gateway, "") == [True, True], "a file in the middle of a change"
        assert admits(gateway, "new\n") == [False, True]


@pytest.mark.parametrize("content", ["", "\n \n", "a b\n", "sch\u00f6n\n"])
def test_files_without_tokens(tmp_path, content):
    (tmp_path / "tokens").write_text(content)
    with pytest.raises(ConfigurationError, match="holds no token"):
        SecurityFiles(token_file=str(tmp_path / "tokens")).read()


def test_clients_send_the_first_token_of_their_file(tmp_path):
    (tmp_path / "tokens").write_text("new\nold\n")
    assert client_credentials(token_file=str(tmp_path / "tokens"))().tokens[0] == "new"


def test_orders_of_operators_are_recorded_before_they_are_carried_out(serve):
    orders = []

    async def record(**order):
        orders.append((order, gateway.core.hello().state))

    with serve() as gateway:
        gateway.server._record = record
        asked = asking(gateway.address)
        asked.call("Scale", {"workers": 2})
        asked.call("Drain", {})
        asked.call("Stop", {})
    assert orders == [
        ({"workers": 2}, "serving"),
        ({"draining": True}, "serving"),
        ({"stopping": True}, "draining"),
    ]


@pytest.mark.long
def test_an_order_that_cannot_be_recorded_is_refused_in_time(serve, monkeypatch):
    """As while the head of the cluster is away."""

    async def never(**order):
        await asyncio.Event().wait()

    monkeypatch.setattr(server, "_RECORD_S", 0.05)
    with serve() as gateway:
        gateway.server._record = never
        for method in ("Scale", "Drain", "Stop"):
            with pytest.raises(RefusedError, match="the head of the cluster does not answer"):
                asking(gateway.address).call(method, {"workers": 3})
        assert len(gateway.core.worker_set.workers) == 1
        assert asking(gateway.address).hello().state == "serving"
        assert not gateway.core.stopping.is_set()


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_the_address_of_all_interfaces_is_one_that_clients_can_use(host):
    assert reachable(host) not in ("", host)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "10.1.2.3"])
def test_the_address_of_one_interface_stays(host):
    assert reachable(host) == host


def test_the_administrators_token(serve):
    with serve(tokens=("user",), admin_tokens=("admin",)) as gateway:
        user, admin = (asking(gateway.address, tokens=(t,)) for t in ("user", "admin"))
        assert user.hello().workers == 1
        for method in ("Scale", "Drain", "Stop"):
            with pytest.raises(RefusedError, match="token"):
                user.call(method, {"workers": 3})
        assert len(admin.call("Scale", {"workers": 2})["worker_list"]) == 2
        assert admin.hello().state == "serving"
        admin.call("Stop", {})
        assert gateway.core.stopping.is_set()


@pytest.mark.parametrize(
    ("security", "host"),
    [
        ({}, "0.0.0.0"),
        ({"ca": b"x"}, "127.0.0.1"),
    ],
)
def test_what_would_be_open_to_a_network_is_refused(security, host):
    with pytest.raises(ConfigurationError):
        check_exposure(Credentials(**security), host)


@pytest.mark.parametrize("one", ["tls_cert", "tls_key"])
def test_a_certificate_and_its_key_belong_together(one):
    with pytest.raises(ConfigurationError, match="needs its key"):
        SecurityFiles(**{one: "/x"}).read()


def test_another_interface_is_fine_with_a_token():
    check_exposure(Credentials(tokens=("t",)), "0.0.0.0")


def test_secrets_are_in_no_repr():
    assert "hush" not in repr(Credentials(tokens=("hush",), admin_tokens=("hush",)))
    assert "hush" not in repr(Credentials(tokens=("hush",)))


def test_messages_that_are_none(serve):
    with serve() as gateway:
        for data in (b"", b"\xc1", b"\x80", pack({"v": "?"}), pack({})[:-1]):
            with pytest.raises(grpc.RpcError) as refused:
                raw(gateway.address, f"/{SERVICE}/Submit", data)
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        for message in ({}, {"job": 1, "storage": "default", "client": "c"}, {"job": {}}):
            with pytest.raises(RefusedError):
                asking(gateway.address).call("Submit", message)
        with pytest.raises(RefusedError):
            asking(gateway.address).call("Poll", {})
        with pytest.raises(RefusedError):
            asking(gateway.address).call("Scale", {"workers": -1})
        assert asking(gateway.address).hello().state == "serving"


def test_a_message_that_is_too_long(serve):
    with serve() as gateway:
        with pytest.raises(grpc.RpcError) as refused:
            raw(gateway.address, f"/{SERVICE}/Submit", b"x" * (MESSAGE_BYTES + 1))
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_client_of_another_time(serve):
    with serve() as gateway:
        with pytest.raises(RefusedError) as refused:
            asking(gateway.address).call("Hello", {"v": 9, "min_v": 7})
        assert refused.value.code == "version"
        newer = asking(gateway.address).call("Hello", {"v": 9, "min_v": 1, "whatever": [1]})
        assert newer["state"] == "serving"


def test_what_clients_tell_is_counted_if_it_is_known(serve):
    with serve() as gateway:
        asked = asking(gateway.address)
        asked.hello({"retries": 2, "of_a_later_release": 7})
        asked.hello({"retries": 1, "fallbacks:queue": 2, "fallbacks:of_a_later_release": 1})
        for wrong in (
            *({"retries": 5, "lost": count} for count in ("many", 1.5, -1, True, None)),
            ["lost"],
            7,
        ):
            with pytest.raises(RefusedError, match="malformed Hello: ") as refused:
                asked.call("Hello", {"events": wrong})
            assert refused.value.code == "malformed"
        for wrong in ({"default": 1}, {"default": None}, ["default"], 7):
            with pytest.raises(RefusedError, match="malformed Hello: "):
                asked.call("Hello", {"marks": wrong})
        metrics = gateway.on_loop(gateway.core.describe)["metrics"]
    assert {n: v for n, v in metrics.items() if "_client_" in n} == {
        'forebay_compaction_client_events_total{event="retries"}': 3,
        'forebay_compaction_client_fallbacks_total{cause="queue"}': 2,
    }


@pytest.mark.parametrize("wrong", [None, ["a"], {"a": 1}, 5.5, True, b"a"], ids=repr)
@pytest.mark.parametrize(
    ("method", "name", "right"),
    [
        ("Poll", "job_id", {}),
        ("Poll", "wait_s", {"job_id": "a"}),
        ("Release", "job_id", {}),
        ("Check", "storage", {"worker": "w"}),
        ("Check", "worker", {"storage": "s"}),
        ("Scale", "workers", {}),
    ],
)
def test_a_value_of_a_wrong_type_is_malformed(serve, method, name, right, wrong):
    if (name, wrong) == ("wait_s", 5.5):
        return
    with serve() as gateway, pytest.raises(RefusedError) as refused:
        asking(gateway.address).call(method, {**right, name: wrong})
    assert refused.value.code == "malformed", refused.value


@pytest.mark.parametrize("service", ["", SERVICE])
def test_the_health_check_of_kubernetes(serve, service):
    with serve() as gateway, grpc.insecure_channel(gateway.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        asked = health_pb2.HealthCheckRequest(service=service)
        assert health.Check(asked, timeout=100).status == health_pb2.HealthCheckResponse.SERVING
        gateway.on_loop(gateway.core.drain)
        assert health.Check(asked, timeout=100).status == health_pb2.HealthCheckResponse.NOT_SERVING


def test_a_health_watch_sees_the_drain(serve):
    with serve() as gateway, grpc.insecure_channel(gateway.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(), timeout=100
        )
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        gateway.on_loop(gateway.core.drain)
        assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()


def test_a_health_check_of_an_unknown_service(serve):
    with serve() as gateway, grpc.insecure_channel(gateway.address) as channel:
        with pytest.raises(grpc.RpcError) as refused:
            health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service="of.another.Server"), timeout=100
            )
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_port_is_listened_on_once(serve, state_dir):
    with serve() as gateway:
        port = int(gateway.address.rpartition(":")[2])

        async def second():
            from forebay_compaction_ray.gateway.core import GatewayCore
            from forebay_compaction_ray.gateway.server import GatewayServer

            core = GatewayCore(ThreadPool({}, {}).start, LIMITS, storages=ScriptedStorages())
            server = GatewayServer(core, Credentials)
            with pytest.raises(ConfigurationError, match="listen"):
                await server.start("127.0.0.1", port)

        asyncio.run(second())


@pytest.fixture
def metrics_page():
    """Serve some metrics; return them and their address."""
    metrics = Metrics()
    with metrics.serve("127.0.0.1", 0) as server:
        yield metrics, server.server_address
        server.shutdown()


@pytest.mark.long
def test_numbers_for_prometheus(metrics_page):
    metrics, (host, port) = metrics_page
    metrics["jobs_submitted"].inc(3)
    metrics["jobs_lost"].labels(cause='a "quoted" cause,\n of two lines').inc()
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=100) as answer:
        text = answer.read().decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    (submitted,) = families["forebay_compaction_jobs_submitted"].samples
    assert (submitted.value, families["forebay_compaction_run_seconds"].type) == (3, "histogram")
    (lost,) = families["forebay_compaction_jobs_lost"].samples
    assert lost.labels == {"cause": 'a "quoted" cause,\n of two lines'}


@pytest.mark.long
def test_a_port_for_metrics_that_is_taken_is_named(metrics_page):
    _, (host, port) = metrics_page
    with pytest.raises(ConfigurationError, match=f"cannot listen on {host}:{port}"):
        Metrics().serve(host, port)


@pytest.mark.long
def test_a_scraper_that_is_silent_is_cut_off(monkeypatch):
    with Metrics().serve("127.0.0.1", 0) as server:
        monkeypatch.setattr(server.RequestHandlerClass, "timeout", 0.05)
        with socket.create_connection(server.server_address, 100) as silent:
            assert silent.recv(1) == b""
        server.shutdown()


# -- TLS ----------------------------------------------------------------------------------------


@pytest.fixture
def pems(pem_files):
    return {file.name: file.read_bytes() for file in pem_files.iterdir()}


def test_tls(serve, pems):
    with serve(certificate=pems["one.pem"], key=pems["one.key"], tokens=("t",)) as gateway:
        assert asking(gateway.address, ca=pems["ca.pem"], tokens=("t",)).hello()
        with pytest.raises(RefusedError, match="token"):
            asking(gateway.address, ca=pems["ca.pem"]).hello()
        with pytest.raises(UnreachableError, match=r"If it serves TLS, name the CA .* in tls-ca"):
            asking(gateway.address, tokens=("t",)).hello()
        port = gateway.address.rpartition(":")[2]
        with pytest.raises(UnreachableError, match="is not for the name of the address"):
            asking(f"localhost:{port}", ca=pems["ca.pem"]).hello()
    with serve() as plain, pytest.raises(UnreachableError, match="does not serve TLS: leave"):
        asking(plain.address, ca=pems["ca.pem"]).hello()


def test_a_certificate_is_replaced_while_the_gateway_serves(serve, pems):
    other = trustme.CA()
    own = other.issue_cert("127.0.0.1")
    with serve(certificate=pems["one.pem"], key=pems["one.key"]) as gateway:
        assert asking(gateway.address, ca=pems["ca.pem"]).hello()
        gateway.security = Credentials(
            certificate=own.cert_chain_pems[0].bytes(), key=own.private_key_pem.bytes()
        )
        assert asking(gateway.address, ca=other.cert_pem.bytes()).hello()
        with pytest.raises(UnreachableError, match="tls-ca has not signed its certificate"):
            asking(gateway.address, ca=pems["ca.pem"]).hello()


def test_mutual_tls(serve, pems):
    own = {"certificate": pems["one.pem"], "key": pems["one.key"]}
    with serve(**own, ca=pems["ca.pem"]) as gateway:
        assert asking(gateway.address, ca=pems["ca.pem"], **own).hello()
        with pytest.raises(UnreachableError, match="name one in tls-cert, and tls-key"):
            asking(gateway.address, ca=pems["ca.pem"]).hello()
