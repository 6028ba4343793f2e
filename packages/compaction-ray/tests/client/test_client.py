"""The client and its jobs, against real gRPC on loopback: successes and failures."""

from __future__ import annotations

import contextlib
import errno
import threading

import attrs
import pytest
from compaction_ray_toys import (
    ALL,
    PATIENCE_S,
    QUICK,
    Concatenation,
    Hurried,
    ThreadPool,
    begun,
    dead_address,
    ended,
    happened,
    job,
    result_of,
    running,
)

from forebay_compaction_ray.client.service import RemoteCompactionService
from forebay_state_api.contract.checksummed import seal
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionPhase
from forebay_state_api.contract.files import StateFile
from forebay_state_api.errors import (
    ConfigurationError,
    CorruptStateError,
    PluginError,
    StorageError,
)

# -- success ------------------------------------------------------------------------------------


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
    before = set(threading.enumerate())
    client_of(dead_address())
    assert set(threading.enumerate()) <= before


@pytest.mark.usefixtures("patient")
def test_another_process_finds_the_job_at_the_gateway(client_of, gateway, remote):
    first = client_of(gateway.address)
    given = begun(first, remote)
    second = client_of(gateway.address)
    assert second.poll(given.id).phase is CompactionPhase.RUNNING
    remote.go.set()
    assert second.poll(given.id, PATIENCE_S).phase is CompactionPhase.DONE


def test_a_gateway_forgets_a_job_once_its_owner_releases_it(client_of, gateway):
    client, given = client_of(gateway.address), job(1)
    client._threads._most = 1  # its work is done in order
    assert ended(client, given).phase is CompactionPhase.DONE
    assert gateway.on_loop(gateway.core.describe)["remembered"] == 1
    client.release(given.id)
    released = threading.Event()
    client._threads.do(released.set)
    assert released.wait(PATIENCE_S)
    assert gateway.on_loop(gateway.core.describe)["remembered"] == 0


@pytest.mark.usefixtures("patient")
def test_a_gateway_remembers_a_job_that_another_process_asks_for(client_of, gateway, remote):
    first = client_of(gateway.address)
    given = begun(first, remote)
    assert client_of(gateway.address).poll(given.id).phase is CompactionPhase.RUNNING
    first.close()
    remote.go.set()
    for _ in range(2):
        another = client_of(gateway.address)
        assert another.poll(given.id, PATIENCE_S).phase is CompactionPhase.DONE


def test_a_job_that_nobody_knows_is_unknown(client_of, gateway):
    assert client_of(gateway.address).poll("nobody").phase is CompactionPhase.UNKNOWN
    assert client_of(dead_address()).poll("nobody").phase is CompactionPhase.UNKNOWN


def test_releasing_stops_a_job_also_for_another_process(client_of, gateway, remote):
    first = client_of(gateway.address)
    given = begun(first, remote)
    while not gateway.on_loop(lambda: gateway.core._jobs[given.id].ended._waiters):
        pass  # until its process waits at the gateway
    client_of(gateway.address).release(given.id)
    assert first.poll(given.id, PATIENCE_S).phase is CompactionPhase.LOST


def test_aborting(client_of, gateway, remote):
    client = client_of(gateway.address)
    given = begun(client, remote)
    client.abort(given.id)
    assert client.poll(given.id, PATIENCE_S).phase is CompactionPhase.ABORTED


@pytest.mark.usefixtures("patient")
def test_jobs_go_on_when_the_process_ends(client_of, gateway, remote):
    client = client_of(gateway.address)
    given = begun(client, remote)
    another = client_of(gateway.address)
    assert another.poll(given.id).phase is CompactionPhase.RUNNING
    client.close()
    remote.go.set()
    assert another.poll(given.id, PATIENCE_S).phase is CompactionPhase.DONE


def test_a_process_that_ends_hands_its_jobs_over(client_of, gateway, remote, own):
    """Jobs at a gateway are left there, also if they only wait; the rest is done here."""
    remote.go.clear()
    client = client_of(gateway.address, min_bytes=100)
    jobs = [job(1), job(2), job(3, size=99)]
    for given in jobs:
        client.submit(given)
    client.detach()
    taken = {entry.id for entry in gateway.on_loop(lambda: list(gateway.core._jobs.values()))}
    assert taken == {given.id for given in jobs[:2]}
    assert client.poll(jobs[2].id).phase is CompactionPhase.DONE
    assert own.runs == 1


def test_a_process_that_ends_tells_what_stops_the_query(client_of):
    client = client_of(dead_address(), failure_strategy="fail", clock=Hurried())
    client.submit(job())
    with pytest.raises(StorageError, match="failure-strategy is 'fail'"):
        client.detach()


# -- jobs that fail -----------------------------------------------------------------------------


def of_another_version():
    """Return the error of a plugin: a class that this package does not know."""
    return type("SomeError", (Exception,), {})("no")


@pytest.mark.parametrize(
    "fault",
    [
        CorruptStateError("it is missing"),
        StorageError("throttled", transient=True),
        ZeroDivisionError("oops"),
        MemoryError(),
        OSError(errno.EMFILE, "Too many open files"),
        RuntimeError("can't start new thread"),
        TimeoutError(),
        of_another_version(),
    ],
    ids=repr,
)
def test_whatever_a_worker_says_the_job_is_done_here(client_of, gateway, remote, own, fault):
    remote.fault = fault
    client = client_of(gateway.address, request_retries=1)
    assert ended(client, job()).phase is CompactionPhase.DONE
    assert own.runs == 1
    assert client.counters.all()["fallbacks:attempts"] == 1
    remote.fault = None
    assert ended(client, job(2)).phase is CompactionPhase.DONE
    assert own.runs == 1, "the worker is used again"


def test_only_the_failure_of_the_local_compaction_reaches_the_query(
    client_of, gateway, remote, own
):
    remote.fault = own.fault = CorruptStateError("an input is damaged")
    status = ended(client_of(gateway.address, request_retries=0), job())
    assert (status.phase, status.fault) == (CompactionPhase.FAILED, CompactionFault.CORRUPTION)
    assert "is damaged" in status.message


def test_a_verdict_counts_when_the_client_reads_the_same(client_of, gateway, remote, storage, own):
    storage.put("query/op/data/in1", b"damaged")
    remote.fault = CorruptStateError("an input is damaged")
    status = ended(client_of(gateway.address, failure_strategy="fail"), job())
    assert (status.phase, status.fault) == (CompactionPhase.FAILED, CompactionFault.CORRUPTION)
    assert "is damaged" in status.message
    assert own.runs == 0


@pytest.mark.long
def test_a_verdict_that_the_client_cannot_confirm_is_given_time(client_of, gateway, remote, own):
    remote.fault = CorruptStateError("it is missing")
    client = client_of(gateway.address, failure_strategy="fail", clock=Hurried())
    status = ended(client, job())
    assert (status.phase, status.fault) == (CompactionPhase.FAILED, CompactionFault.UNAVAILABLE)
    assert "it is missing" in status.message
    assert own.runs == 0


def test_outputs_that_are_not_what_the_result_says(client_of, gateway, remote, storage):
    remote.damage = True
    client, given = client_of(gateway.address), job()
    status = ended(client, given)
    assert status.phase is CompactionPhase.LOST, "it needs another prefix: this result stays"
    assert happened(client, "verify_failures") == 1
    another = client_of(gateway.address)
    with pytest.raises(CorruptStateError):
        another.verify(given, result_of(storage, given))


@pytest.mark.parametrize(
    "data",
    [
        seal({"outputs": []})[:-1],
        seal({"outputs": []})[:-1] + b"?",
        seal({"outputs": [{"whatever": 1}]}),
        b"something else",
    ],
)
def test_a_result_that_cannot_be_decoded(client_of, gateway, remote, storage, data):
    client = client_of(gateway.address)
    given = begun(client, remote)
    storage.child(given.operator).put(given.result_name, data)
    remote.go.set()
    assert client.poll(given.id, PATIENCE_S).phase is CompactionPhase.LOST


@pytest.mark.parametrize("strategy", ["fallback", "fail"])
@pytest.mark.parametrize("claim", [b"", b"rubbish", seal({"digest": "another job's"})])
def test_below_a_prefix_that_is_taken_a_job_is_tried_once(
    client_of, gateway, storage, remote, own, strategy, claim
):
    client, given = client_of(gateway.address, failure_strategy=strategy), job()
    storage.child(given.operator).put(given.claim_name, claim)
    status = ended(client, given)
    assert status.phase is CompactionPhase.LOST, "its owner has another prefix"
    assert "cannot run" in status.message
    again = attrs.evolve(given, id="again", output_prefix=job().output_prefix, attempt=2)
    assert ended(client, again).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs) == (1, 0)
    assert happened(client, "retries") == 0


def test_under_fail_a_query_stops_if_each_prefix_is_taken(client_of, gateway, storage):
    """It would be submitted for ever otherwise."""
    client = client_of(gateway.address, failure_strategy="fail", clock=Hurried())
    given, attempts = job(), 0
    while (attempts := attempts + 1) < 60:
        new = {"id": f"j{attempts}", "output_prefix": job().output_prefix, "attempt": attempts}
        given = attrs.evolve(given, **new)
        storage.child(given.operator).put(given.claim_name, b"")
        if (status := ended(client, given)).phase is not CompactionPhase.LOST:
            break
    assert status.fault is CompactionFault.UNAVAILABLE
    assert "cannot run" in status.message


@pytest.mark.long
def test_another_process_does_not_adopt_a_failure(client_of, gateway, remote):
    remote.fault = MemoryError()
    given = job()
    first = client_of(gateway.address, failure_strategy="fail", clock=Hurried())
    assert ended(first, given).fault is CompactionFault.UNAVAILABLE
    assert first.poll(given.id).fault is CompactionFault.UNAVAILABLE, "Spark's retries agree"
    for strategy in ("fallback", "fail"):
        restarted = client_of(gateway.address, failure_strategy=strategy)
        assert restarted.poll(given.id, PATIENCE_S).phase is CompactionPhase.LOST


@pytest.mark.parametrize("strategy", ["fallback", "fail"])
def test_a_passing_failure_is_tried_again_at_once(
    client_of, gateway, remote, own, caplog, strategy
):
    begins = iter([StorageError("throttled", transient=True)])
    compact = remote.compact

    def fails_once(*given):
        for fault in begins:
            raise fault
        return compact(*given)

    remote.compact = fails_once
    client, given = client_of(gateway.address, failure_strategy=strategy), job()
    assert ended(client, given).phase is CompactionPhase.DONE
    assert (happened(client, "retries"), happened(client, "fallbacks")) == (1, 0)
    assert (remote.runs, own.runs) == (1, 0)
    said = f"compaction {given.id} is tried again: failed at {gateway.address}: throttled"
    assert said in caplog.messages


def test_outputs_that_cannot_be_read_for_a_moment_are_read_again(client_of, gateway, remote, own):
    begins = iter([StorageError("throttled", transient=True)])
    verify = own.verify

    def fails_once(*given):
        for fault in begins:
            raise fault
        verify(*given)

    own.verify = fails_once
    client = client_of(gateway.address)
    assert ended(client, job()).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs, len(own.verified)) == (1, 0, 1)
    assert happened(client, "retries") == 1


def test_a_job_with_too_many_attempts_is_done_here(client_of, gateway, remote, own):
    client = client_of(gateway.address, request_retries=1)
    assert ended(client, job(attempt=3)).phase is CompactionPhase.DONE
    assert (remote.runs, own.runs) == (0, 1)
    assert client.counters.all()["fallbacks:attempts"] == 1


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["fallback", "fail"])
def test_a_job_that_takes_too_long_is_stopped(client_of, gateway, remote, own, strategy):
    remote.go.clear()
    client = client_of(gateway.address, request_timeout_s=0.3, failure_strategy=strategy)
    status = ended(client, job())
    if strategy == "fail":
        assert status.fault is CompactionFault.UNAVAILABLE
        assert "not done after" in status.message
    else:
        assert status.phase is CompactionPhase.DONE
    assert own.runs == (strategy == "fallback")


@pytest.mark.long
def test_a_gateway_that_began_again_gets_the_job_again(state_dir, storage, remote, client_of, own):
    pool = ThreadPool({"default": state_dir}, {"toy": remote})
    with running(pool, storages=["default"], limits=QUICK) as first:
        client = client_of(first.address, failure_strategy="fail")
        given = begun(client, remote)
        port = int(first.address.rpartition(":")[2])
    remote.go.set()
    with running(pool, storages=["default"], limits=QUICK, port=port):
        assert client.poll(given.id, PATIENCE_S).phase is CompactionPhase.DONE
    assert own.runs == 0


@pytest.mark.long
def test_a_missing_input_is_found_by_the_local_compaction(client_of, gateway, own):
    meta = {"entries": 1, "sum": 0}
    given = job(inputs=[StateFile(name="data/gone", size=1, range=ALL, meta=meta)])
    status = ended(client_of(gateway.address), given)
    assert status.fault is CompactionFault.TRANSIENT  # as a toy reports it
    assert own.runs == 1


@pytest.mark.long
def test_a_compactor_that_writes_elsewhere_or_deletes(client_of, gateway, remote, storage, own):
    class Vandal(Concatenation):
        def compact(self, given, here, cancelled):
            with contextlib.suppress(PluginError):  # it hides the refusal, and is caught
                here.delete(["data/in1"])
            here.put("data/in1", b"mine")

    remote.compact = Vandal().compact
    assert ended(client_of(gateway.address), job()).phase is CompactionPhase.DONE
    assert own.runs == 1
    assert storage.get("query/op/data/in1") == b"\x01" * 100


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
