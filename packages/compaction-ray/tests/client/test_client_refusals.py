"""The client and gateways that refuse, or speak another protocol."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor

import attrs
import grpc
import msgpack
import pytest
from compaction_ray_toys import (
    ALL,
    PATIENCE_S,
    QUICK,
    Clock,
    Hurried,
    ThreadPool,
    counted,
    ended,
    happened,
    job,
    running,
)

from forebay_compaction_ray import storage_mark
from forebay_compaction_ray.credentials import Credentials
from forebay_compaction_ray.protocol import REFUSAL_KEY, SERVICE, decode, pack
from forebay_compaction_ray.worker.noop_compactor import NoopCompactor
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionPhase
from forebay_state_api.contract.files import StateFile

# -- a gateway that refuses ---------------------------------------------------------------------


def refusing(state_dir, remote, what):
    """Start a gateway that refuses the client for one reason."""
    pool = ThreadPool(
        {"default": state_dir}, {"other" if what == "unknown_format" else "toy": remote}
    )
    given = {
        "token": {"security": Credentials(tokens=("right",))},
        "unknown_storage": {"storages": ["elsewhere"]},
        "unknown_format": {},
        "too_large": {"limits": attrs.evolve(QUICK, job_bytes=99)},
        "inputs": {"limits": attrs.evolve(QUICK, inputs=0)},
    }[what]
    return running(pool, **{"storages": ["default"], "limits": QUICK, **given})


REFUSALS = {
    "token": "fallbacks:refused",
    "unknown_storage": "fallbacks:storage",
    "unknown_format": "fallbacks:refused",
    "too_large": "fallbacks:limits",
    "inputs": "fallbacks:limits",
}


@pytest.mark.parametrize("what", REFUSALS)
def test_a_refusal_leads_to_compaction_in_the_job(state_dir, storage, remote, client_of, own, what):
    with refusing(state_dir, remote, what) as gateway:
        client = client_of(gateway.address)
        assert ended(client, job()).phase is CompactionPhase.DONE
        assert (remote.runs, own.runs) == (0, 1)
        assert client.counters.all()[REFUSALS[what]] == 1


@pytest.mark.parametrize("what", REFUSALS)
def test_a_gateway_that_refuses_is_no_obstacle_to_another(
    state_dir, storage, gateway, remote, client_of, own, what
):
    with refusing(state_dir, remote, what) as other:
        client = client_of(other.address, gateway.address, failure_strategy="fail")
        for number in range(1, 5):
            assert ended(client, job(number)).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs) == (4, 0)


@pytest.mark.parametrize("what", ["too_large", "inputs", "unknown_storage"])
def test_what_waiting_does_not_help_fails_at_once(state_dir, storage, remote, client_of, own, what):
    with refusing(state_dir, remote, what) as gateway:
        client = client_of(gateway.address, failure_strategy="fail", queue_timeout_s=3600.0)
        status = ended(client, job())
    assert status.fault is CompactionFault.UNAVAILABLE
    assert gateway.address in status.message
    assert own.runs == 0


@pytest.mark.long
@pytest.mark.parametrize("what", ["token", "unknown_format"])
def test_what_may_pass_fails_when_its_time_is_over(
    state_dir, storage, remote, client_of, own, what
):
    with refusing(state_dir, remote, what) as gateway:
        client = client_of(gateway.address, failure_strategy="fail", clock=Hurried())
        status = ended(client, job())
    assert status.fault is CompactionFault.UNAVAILABLE
    assert ("token" if what == "token" else "toy") in status.message
    assert own.runs == 0


@pytest.mark.long
def test_a_description_above_the_size_of_a_message_stays_here(client_of, gateway, storage, own):
    name = "x" * 200
    meta = {"entries": 1, "sum": 0}
    inputs = [StateFile(name=f"data/{name}/{n}", size=0, range=ALL, meta=meta) for n in range(500)]
    with scripted(
        Hello=lambda r, c: pack({**SERVING, "limits": {"message_bytes": 100_000}})
    ) as address:
        client = client_of(address)
        given = job(inputs=inputs)
        for file in inputs:
            storage.put(f"query/op/{file.name}", b"")
        assert ended(client, given).phase is CompactionPhase.DONE
        assert client.counters.all()["fallbacks:limits"] == 1
    assert own.runs == 1


def test_a_full_queue_is_waited_for_and_then_left(state_dir, storage, remote, client_of, own):
    remote.go.clear()
    pool = ThreadPool({"default": state_dir}, {"toy": remote})
    limits = attrs.evolve(QUICK, queue=0)
    with running(pool, storages=["default"], limits=limits, workers=0) as gateway:
        client = client_of(gateway.address, clock=(clock := Clock()), queue_timeout_s=30.0)
        client.submit(given := job())
        while not counted(gateway.core, "jobs_rejected", reason="queue_full"):
            client.poll(given.id, 0.01)
        clock.now += 31.0
        assert client.poll(given.id, PATIENCE_S).phase is CompactionPhase.DONE
        assert client.counters.all()["fallbacks:refused"] == 1
    assert (remote.runs, own.runs) == (0, 1)


@pytest.mark.long
def test_a_job_that_waits_too_long_in_the_queue_comes_back(
    state_dir, storage, remote, client_of, own
):
    pool = ThreadPool({"default": state_dir}, {"toy": remote})
    with running(pool, storages=["default"], limits=QUICK, workers=0) as gateway:
        client = client_of(gateway.address, queue_timeout_s=0.3)
        assert ended(client, job()).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs) == (0, 1)
    assert client.counters.all()["fallbacks:queue"] == happened(client, "fallbacks") == 1


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


SERVING = {"state": "serving", "boot": "b", "workers": 1}


@pytest.mark.long
def test_a_newer_gateway_that_no_longer_understands_us(client_of, own):
    newer = {**decode(pack(SERVING)), "v": 9, "min_v": 8}
    with scripted(Hello=lambda request, context: msgpack.packb(newer)) as address:
        assert ended(client_of(address), job()).phase is CompactionPhase.DONE
        failing = client_of(address, failure_strategy="fail", clock=Hurried())
        assert "upgrade" in ended(failing, job(2)).message
    assert own.runs == 1


def test_a_newer_gateway_that_does(client_of):
    def submit(request, context):
        plain = decode(request)["job"]
        view = {"job_id": plain["id"], "phase": "running", "news": 1}
        return msgpack.packb({"v": 9, "min_v": 1, "boot": "b", **view})

    def poll(request, context):
        view = {"job_id": decode(request)["job_id"], "phase": "aborted", "code": "released"}
        return msgpack.packb({"v": 9, "min_v": 1, "boot": "b", **view})

    with scripted(Hello=lambda r, c: pack(SERVING), Submit=submit, Poll=poll) as address:
        assert ended(client_of(address), job()).phase is CompactionPhase.LOST


@pytest.mark.parametrize("garbage", [b"", b"\xc1", b"\x93\x01\x02\x03", pack({})[:-3], b"x" * 100])
def test_something_else_listens_there(client_of, own, garbage):
    with scripted(Hello=lambda request, context: garbage) as address:
        assert ended(client_of(address), job()).phase is CompactionPhase.DONE
    assert own.runs == 1


def test_a_refusal_that_makes_no_sense_keeps_no_job_from_another_gateway(
    client_of, gateway, remote, own
):
    def hello(request, context):
        context.set_trailing_metadata(((REFUSAL_KEY, b"\xc1"),))
        context.abort(grpc.StatusCode.UNAVAILABLE, "no")

    with scripted(Hello=hello) as address:
        client = client_of(address, gateway.address, request_retries=0)
        for number in (1, 2):
            assert ended(client, job(number)).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs) == (2, 0)


@pytest.mark.long
def test_no_service_of_ours(client_of, own):
    with scripted() as address:
        assert ended(client_of(address), job()).phase is CompactionPhase.DONE
        failing = client_of(address, failure_strategy="fail", clock=Hurried())
        assert "not a gateway" in ended(failing, job(2)).message
    assert own.runs == 1


@pytest.mark.parametrize("hello", [{"workers": "?"}, {"limits": 3}, {"state": None}])
def test_a_description_that_makes_no_sense(client_of, own, hello):
    with scripted(Hello=lambda r, c: pack({**SERVING, **hello})) as address:
        assert ended(client_of(address), job()).phase is CompactionPhase.DONE
    assert own.runs == 1


def test_a_submission_without_an_answer_is_done_here_as_it_is(client_of, gateway, remote, own):
    """It may run at a worker too: every run has its own names, and the first result counts."""
    arrived = threading.Event()

    def submit(request, context):
        arrived.set()
        context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke")

    with scripted(Hello=lambda r, c: pack(SERVING), Submit=submit) as address:
        assert ended(client_of(address), job()).phase is CompactionPhase.DONE
        assert own.runs == 1
        two = client_of(address, gateway.address)
        assert ended(two, job(2)).phase is CompactionPhase.DONE
    assert arrived.is_set()
    assert (remote.runs, own.runs) == (1, 1), "another gateway, then this process"


def test_a_gateway_that_says_done_without_a_result(client_of, own):
    def submit(request, context):
        plain = decode(request)["job"]
        return pack({"job_id": plain["id"], "phase": "done", "boot": "b"})

    with scripted(Hello=lambda r, c: pack(SERVING), Submit=submit) as address:
        client = client_of(address)
        assert ended(client, job()).phase is CompactionPhase.LOST
        assert ended(client, job(attempt=4)).phase is CompactionPhase.DONE
    assert own.runs == 1


# -- verdicts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "node", "fault"),
    [
        ("permanent", "permanent", "other", CompactionFault.PERMANENT),
        ("permanent", "corruption", "other", CompactionFault.UNAVAILABLE),
        ("permanent", "permanent", "one", CompactionFault.UNAVAILABLE),
        ("corruption", "corruption", "one", CompactionFault.UNAVAILABLE),
        ("corruption", "corruption", "other", CompactionFault.UNAVAILABLE),
        ("permanent", "permanent", "", CompactionFault.UNAVAILABLE),
    ],
    ids=["two", "disagree", "one machine", "damage, one machine", "intact", "older gateway"],
)
def test_a_verdict_counts_when_another_machine_gives_the_same(
    client_of, own, first, second, node, fault
):
    """Of an input that this process reads intact, no machine can say that it is damaged."""
    avoided = []

    def submit(request, context):
        plain = decode(request)
        avoided.append(plain["avoid"])
        worker, verdict, where = ("w1", second, node) if plain["avoid"] else ("w0", first, "one")
        failed = {"phase": "failed", "fault": verdict, "worker": worker, "message": "no merge"}
        return pack({"job_id": plain["job"]["id"], "node": where if node else "", **failed})

    with scripted(Hello=lambda r, c: pack(SERVING), Submit=submit) as address:
        client = client_of(address, failure_strategy="fail", clock=Hurried())
        status = ended(client, job())
    assert status.fault is fault
    assert "no merge" in status.message
    assert avoided[:2] == [[], ["w0"]]
    assert (own.runs, own.verified) == (0, ["data/in1"]), "the input is read once"


def test_of_a_format_that_cannot_be_checked_two_machines_are_believed(client_of):
    def submit(request, context):
        plain = decode(request)
        number = len(plain["avoid"])
        view = {"phase": "failed", "fault": "corruption", "worker": f"w{number}", "message": "no"}
        return pack({"job_id": plain["job"]["id"], "node": f"n{number}", **view})

    with scripted(Hello=lambda r, c: pack(SERVING), Submit=submit) as address:
        client = client_of(address, failure_strategy="fail", clock=Hurried())
        client._here = attrs.evolve(client._here, find_compactor=lambda _: NoopCompactor())
        assert ended(client, job()).fault is CompactionFault.CORRUPTION


# -- another directory, idle gateways -----------------------------------------------------------


def marked(mark, root="/elsewhere", **given):
    places = {"default": {"root": root, "mark": mark}}
    return {"Hello": lambda r, c: pack({**SERVING, "storages": places, **given})}


@pytest.mark.parametrize("strategy", ["fallback", "fail"])
@pytest.mark.parametrize("here", [True, False])
def test_a_gateway_of_another_directory_gets_nothing(client_of, storage, own, strategy, here):
    if here:
        storage_mark.put(storage)
    with scripted(**marked("theirs")) as address:
        client = client_of(address, failure_strategy=strategy, queue_timeout_s=3600.0)
        given = [ended(client, job(number)) for number in (1, 2)]
    if strategy == "fail":
        assert given[0].fault is CompactionFault.UNAVAILABLE
        mark = f"the mark {storage_mark.read(storage)[:8]}" if here else "no mark"
        assert "'default', /elsewhere, has the mark theirs" in given[0].message
        assert f"the state in {storage.url} has {mark}" in given[0].message
    else:
        assert own.runs == 2
        assert client.counters.all()["fallbacks:storage"] == 2
        said = client.outage().why
        assert "/elsewhere" in said
        assert storage.url in said


def test_the_mark_is_read_once_while_it_is_the_one_of_the_gateway(client_of, storage, monkeypatch):
    reads, read = [], storage_mark.read
    mark = storage_mark.put(storage)
    theirs = iter([mark, mark, "theirs", "theirs", mark])
    monkeypatch.setattr(storage_mark, "read", lambda s: (reads.append(s), read(s))[1])

    def hello(request, context):
        return pack({**SERVING, "storages": {"default": {"root": "/", "mark": next(theirs)}}})

    with scripted(Hello=hello) as address:
        client = client_of(address)
        for number in (1, 2, 3, 4):
            assert ended(client, job(number)).phase is CompactionPhase.DONE
    assert reads == [storage] * 3, "of another one, after both have looked again"
    assert client.counters.all()["fallbacks:storage"] == 1
