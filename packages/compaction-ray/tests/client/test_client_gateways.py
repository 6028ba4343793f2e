"""The client and its gateways: absent, refusing, or speaking another protocol."""

from __future__ import annotations

import contextlib
import itertools
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
    Concatenation,
    Hurried,
    ThreadPool,
    begun,
    black_hole,
    counted,
    dead_address,
    ended,
    happened,
    job,
    running,
)

from forebay_compaction_ray import storage_mark
from forebay_compaction_ray.client.endpoints import Endpoints
from forebay_compaction_ray.client.job import TrackedJob
from forebay_compaction_ray.credentials import Credentials
from forebay_compaction_ray.protocol import REFUSAL_KEY, SERVICE, decode, pack
from forebay_compaction_ray.worker.noop_compactor import NoopCompactor
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionPhase
from forebay_state_api.contract.files import StateFile

# -- no gateway ---------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["fallback", "fail"])
def test_a_dead_port(client_of, own, strategy):
    client = client_of(dead_address(), failure_strategy=strategy, clock=Hurried())
    status = ended(client, job())
    if strategy == "fallback":
        assert status.phase is CompactionPhase.DONE
        assert own.runs == happened(client, "fallbacks") == 1
    else:
        assert (status.phase, status.fault) == (
            CompactionPhase.FAILED,
            CompactionFault.UNAVAILABLE,
        )
        assert "UNAVAILABLE" in status.message
        assert own.runs == 0


def test_a_gateway_that_accepts_and_never_answers(client_of, own):
    with black_hole() as address:
        client = client_of(address, answer_s=0.1)
        assert ended(client, job()).phase is CompactionPhase.DONE
        assert own.runs == 1
        assert ended(client, job(2)).phase is CompactionPhase.DONE
        assert happened(client, "unreachable") == 2


def test_the_next_address_is_asked(client_of, gateway, remote):
    for _ in range(2):
        client = client_of(dead_address(), gateway.address, dead_address())
        assert ended(client, job()).phase is CompactionPhase.DONE
    assert remote.runs == 2


def test_endpoints_change_while_the_job_runs(client_of, gateway, storage, remote, own):
    client = client_of(dead_address(), request_retries=0)
    clock = client.gateways.endpoints
    assert ended(client, job(1)).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs) == (0, 1)
    Endpoints(storage).add(gateway.address)
    clock._read_s = None
    assert ended(client, job(2)).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs) == (1, 1)
    Endpoints(storage).remove(*client.gateways.endpoints.last_known)
    clock._read_s = None
    assert ended(client, job(3)).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs) == (1, 2)
    assert client.gateways.endpoints.last_known == ()


@pytest.mark.parametrize("strategy", ["fallback", "fail"])
def test_when_all_gateways_were_removed_jobs_run_here(client_of, gateway, storage, own, strategy):
    """They were removed on purpose, so that is no reason to fail."""
    Endpoints(storage).remove(gateway.address)
    client = client_of(gateway.address, failure_strategy=strategy)
    assert ended(client, job(1, attempt=1)).phase is CompactionPhase.DONE
    assert ended(client, job(2, attempt=9)).phase is CompactionPhase.DONE
    assert own.runs == 2
    Endpoints(storage).add(gateway.address)
    client.gateways.endpoints._read_s = None
    assert ended(client, job(3)).phase is CompactionPhase.DONE
    assert own.runs == 2, "a gateway has returned"


def test_a_job_that_is_lost_when_all_gateways_were_removed_fails_nobody(
    client_of, gateway, storage, remote, own
):
    client = client_of(gateway.address, failure_strategy="fail", request_retries=0)
    given = begun(client, remote)
    Endpoints(storage).remove(gateway.address)
    client.gateways.endpoints._read_s = None
    gateway.on_loop(lambda: gateway.core._abort(gateway.core._jobs[given.id], "drain"))
    assert client.poll(given.id, PATIENCE_S).phase is CompactionPhase.DONE
    assert own.runs == 1


@pytest.mark.long
def test_a_task_waits_once_for_a_gateway_that_does_not_answer(client_of, monkeypatch):
    waits, wait = [], TrackedJob.wait

    def spied(self, until, timeout_s):
        waits.append(timeout_s)
        return wait(self, until, timeout_s)

    monkeypatch.setattr(TrackedJob, "wait", spied)
    with black_hole() as address:
        client = client_of(address)
        for _ in range(5):
            assert client.poll("somebody's").phase is CompactionPhase.UNKNOWN
    assert sorted(waits) == [0.0] * 5 + [0.25]


# -- reported events ----------------------------------------------------------------------------


def test_a_gateway_that_is_back_is_told_what_happened_meanwhile(client_of, gateway, storage):
    client = client_of(dead_address())
    assert ended(client, job(1)).phase is CompactionPhase.DONE
    Endpoints(storage).add(gateway.address)
    client.gateways.endpoints._read_s = None
    for number in (2, 3):
        assert ended(client, job(number)).phase is CompactionPhase.DONE
    metrics = gateway.on_loop(gateway.core.describe)["metrics"]
    events = {
        name.partition('"')[2][:-2]: n for name, n in metrics.items() if "client_events" in name
    }
    assert metrics['forebay_compaction_client_fallbacks_total{cause="unreachable"}'] == 1
    assert events["submitted"] == 3
    assert events["unreachable"] >= 1
    assert metrics["forebay_compaction_entries_read_total"] == 2
    assert metrics['forebay_compaction_entries_dropped_total{cause="expired"}'] == 0


def test_what_is_counted_is_declared(client_of):
    with pytest.raises(KeyError, match="hiccup"):
        client_of(dead_address()).counters.add("hiccup")


def test_a_stale_result_is_counted_and_told(client_of, gateway):
    client = client_of(gateway.address)
    given = job(1)
    assert ended(client, given).phase is CompactionPhase.DONE
    client.discard(given.id)  # the gateway learns of it from a thread
    assert ended(client, job(2)).phase is CompactionPhase.DONE
    metrics = gateway.on_loop(gateway.core.describe)["metrics"]
    assert metrics['forebay_compaction_client_events_total{event="stale"}'] == 1


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


@pytest.mark.long
def test_another_gateway_gets_the_job_that_one_has_failed_at(
    state_dir, storage, gateway, remote, client_of, own
):
    failing = Concatenation()
    failing.fault = MemoryError()
    pool = ThreadPool({"default": state_dir}, {"toy": failing})
    with running(pool, storages=["default"], limits=QUICK) as first:
        client = client_of(first.address, gateway.address, request_retries=1)
        client.gateways._turns = itertools.repeat(0)  # as if other jobs took the other turns
        for number in (1, 2):
            assert ended(client, job(number)).phase is CompactionPhase.DONE
    assert (failing.runs, remote.runs, own.runs) == (2, 2, 0)


def test_a_gateway_without_workers_keeps_no_job_while_another_works(
    state_dir, storage, gateway, remote, client_of, own
):
    pool = ThreadPool({"default": state_dir}, {"toy": remote})
    with running(pool, storages=["default"], limits=QUICK, workers=0) as empty:
        client = client_of(empty.address, gateway.address, failure_strategy="fail")
        for number in range(1, 5):
            assert ended(client, job(number)).phase is CompactionPhase.DONE
        assert counted(empty.core, "jobs_submitted") == 0
    assert (remote.runs, own.runs) == (4, 0)


@pytest.mark.long
def test_a_job_leaves_a_queue_without_workers_when_another_gateway_is_back(
    state_dir, storage, gateway, remote, client_of, own, monkeypatch
):
    monkeypatch.setattr("forebay_compaction_ray.client.job._QUEUED_POLL_S", 0.1)
    pool = ThreadPool({"default": state_dir}, {"toy": remote})
    with running(pool, storages=["default"], limits=QUICK, workers=0) as empty:
        client = client_of(empty.address, failure_strategy="fail")
        given = job()
        client.submit(given)
        while counted(empty.core, "jobs_submitted") == 0:
            client.poll(given.id, 0.01)
        Endpoints(storage).add(gateway.address)
        client.gateways.endpoints._read_s = None
        assert client.poll(given.id, PATIENCE_S).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs) == (1, 0)


def test_the_log_has_one_line_a_minute_about_one_of_two_gateways(client_of, gateway, caplog):
    clock = Clock()
    client = client_of(dead_address(), gateway.address, clock=clock)
    client.gateways._turns = itertools.repeat(0)  # the dead one is first each time
    for minute in (1, 2):
        for number in range(1, 5):
            assert ended(client, job(number)).phase is CompactionPhase.DONE
        clock.now += 60
        assert sum(r.levelname == "WARNING" for r in caplog.records) == minute
        assert client.outage() is None


# -- an outage ----------------------------------------------------------------------------------


def test_an_outage_has_its_beginning_the_address_and_the_cure(client_of, caplog):
    """The log has no warning: each process would have it, and there may be one for each task."""
    caplog.set_level("INFO")
    address = dead_address()
    client = client_of(address)
    assert client.outage() is None
    ended(client, job(1))
    first = client.outage()
    ended(client, job(2))
    assert client.outage().since == first.since
    assert first.why.startswith(f"the gateway {address} cannot be reached: UNAVAILABLE: ")
    assert first.why.endswith(
        "Compactions run in the job's own processes meanwhile. Start a gateway there, or name one "
        "that runs: with `forebay compaction endpoints add`, or in "
        "spark.forebay.compaction.remote.address"
    )
    assert "runs in this process: the gateway" in caplog.text
    assert [r for r in caplog.records if r.levelname == "WARNING"] == []


def test_the_outage_of_a_gateway_that_answers_nothing_says_what_stops_the_query(client_of):
    with black_hole() as address:
        client = client_of(address, failure_strategy="fail", answer_s=0.05, clock=Hurried())
        assert ended(client, job()).fault is CompactionFault.UNAVAILABLE
    why = client.outage().why
    assert f"the gateway {address} cannot be reached: DEADLINE_EXCEEDED" in why
    assert "longer than queue-timeout stops the query" in why


@pytest.mark.long
def test_an_outage_ends_when_a_worker_has_a_job(client_of, state_dir, storage, remote):
    pool = ThreadPool({"default": state_dir}, {"toy": remote})
    with running(pool, storages=["default"], limits=QUICK, workers=0) as started:
        client = client_of(started.address, queue_timeout_s=0.05)
        ended(client, job(1))
        why = client.outage().why
        assert f"in the queue of {started.address}. " in why
        assert why.endswith(
            "`forebay compaction status` shows the workers, and `scale` orders more"
        )
        started.on_loop(lambda: started.core.worker_set.scale(1))
        while client.outage() is not None:
            ended(client, job(2))
    assert remote.runs > 0


def test_what_other_jobs_may_not_meet_is_no_outage(client_of, gateway, remote, caplog):
    remote.fault = MemoryError()
    client = client_of(gateway.address, request_retries=0)
    assert ended(client, job()).phase is CompactionPhase.DONE
    assert client.counters.all()["fallbacks:attempts"] == 1
    assert client.outage() is None
    assert "runs in this process: failed at" in caplog.text


# -- jobs of another process that no gateway has ------------------------------------------------


def test_with_fail_a_job_that_no_gateway_has_is_lost_after_the_queue_timeout(client_of, gateway):
    """Its owner has given it up by then; it may be submitted again at any time."""
    clock = Clock()
    client = client_of(gateway.address, failure_strategy="fail", clock=clock)
    given = job()
    for clock.now in (1000.0, 1029.9):
        assert client.poll(given.id, PATIENCE_S).phase is CompactionPhase.UNKNOWN
    clock.now = 1030.0
    status = client.poll(given.id, PATIENCE_S)
    assert (status.phase, status.fault) == (CompactionPhase.LOST, None)
    assert "no gateway has it" in status.message
    assert ended(client, given).phase is CompactionPhase.DONE
    assert client.poll(given.id).phase is CompactionPhase.DONE


def test_the_same_if_no_gateway_can_be_asked(client_of):
    clock = Clock()
    client = client_of(dead_address(), failure_strategy="fail", clock=clock)
    assert client.poll("j", PATIENCE_S).phase is CompactionPhase.UNKNOWN
    clock.now += 30.0
    assert client.poll("j", PATIENCE_S).phase is CompactionPhase.LOST


@pytest.mark.parametrize("strategy", ["fallback", "fail"])
def test_a_job_that_its_process_may_compact_itself_is_left_to_it(client_of, storage, strategy):
    address, clock = dead_address(), Clock()
    if strategy == "fail":
        Endpoints(storage).remove(address)
    client = client_of(address, failure_strategy=strategy, clock=clock)
    for _ in range(3):
        assert client.poll("j", PATIENCE_S).phase is CompactionPhase.UNKNOWN
        clock.now += 30.0


def test_of_many_jobs_that_no_gateway_has_the_newest_are_remembered(client_of, monkeypatch):
    monkeypatch.setattr("forebay_compaction_ray.client.service._REMEMBERED", 4)
    client = client_of(dead_address(), failure_strategy="fail", clock=Clock())
    for number in range(9):
        client.poll(f"j{number}", PATIENCE_S)
    assert list(client._missing_since_s) == ["j5", "j6", "j7", "j8"]
