"""Troubles of a remote service and its files: which of them stop a query, and until when."""

from __future__ import annotations

import contextlib
import threading

import pytest
from compaction_ray_query import BATCHES, Query, run, run_until, speak
from compaction_ray_toys import PATIENCE_S, Clock, Concatenation, dead_address

from forebay_backend_lsm.compactor import LsmCompactor
from forebay_compaction_ray.client import gateway as client_side
from forebay_compaction_ray.credentials import Credentials
from forebay_compaction_ray.gateway import server as gateway_side
from forebay_state_api.contract.compaction_service import CompactionPhase
from forebay_state_api.errors import CorruptStateError, StorageError

pytestmark = pytest.mark.long


def test_the_query_stops_if_it_is_told_to_and_goes_on_when_a_gateway_is_back():
    with contextlib.closing(Query(failure_strategy="fail", request_retries=0)) as query:
        for _ in range(8):
            query.batch()
        query.new_process(dead_address(), failure_strategy="fail", request_retries=0)
        with pytest.raises(StorageError, match="failure-strategy is 'fail'"):
            run(query)
        for _ in range(4):  # Spark's retries
            with pytest.raises(StorageError, match="UNAVAILABLE"):
                query.batch()
        patient = {"failure_strategy": "fail", "queue_timeout_s": PATIENCE_S}
        query.new_process(request_retries=0, **patient)
        done = query.count("done")
        run_until(query, lambda: query.count("done") > done)
        query.check()
        assert query.count("done") > done
        assert query.count("fallbacks") == 0


@pytest.mark.usefixtures("patient")
def test_a_subtask_that_goes_on_in_another_process_learns_of_a_failure_as_soon():
    """Not after the job's timeout, which counts in the time of micro-batches: 600 s."""
    options = {"failure_strategy": "fail", "request_retries": 0, "queue_timeout_s": 5.0}
    with contextlib.closing(Query(**options, clock=(clock := Clock()))) as query:
        address = dead_address()
        query.new_process(address, **options, clock=clock)
        while not query.count("submitted"):
            query.batch(minutes=0.01, wait=False)
        query.new_process(address, **options, clock=clock)
        query.batch(minutes=0.01)
        clock.now += 5.0
        query.batch(minutes=0.01, wait=False)
        assert query.count("submitted") == 2, "the new process has sent it again"
        clock.now += 5.0
        query.settle()
        with pytest.raises(StorageError, match="failure-strategy is 'fail'"):
            query.batch(minutes=0.01)


def wrong_token(query):
    query.new_gateway(security=Credentials(tokens=("right",)))
    query.new_process(security=lambda: Credentials(tokens=("wrong",)))
    yield "token is missing or wrong"
    query.new_process(security=lambda: Credentials(tokens=("right",)))


def limits(query):
    query.new_gateway(job_bytes=100)
    yield "exceeds its limits"
    query.new_gateway()


def no_worker(query):
    query.new_process(queue_timeout_s=0.05)
    query.gateway.on_loop(lambda: query.gateway.core.worker_set.scale(0))
    yield "in the queue"
    query.gateway.on_loop(lambda: query.gateway.core.worker_set.scale(1))


def unknown_format(query):
    """Remove the backend's plugin from all workers."""
    query.pool._compactors = {"toy": Concatenation()}
    query.new_gateway()
    yield "no worker has a compactor"
    query.pool._compactors = {LsmCompactor.format: query.compactor}
    query.new_gateway()
    query.new_process()


def unknown_storage(query):
    query.new_process(storage="elsewhere")
    yield "has no storage 'elsewhere'"
    query.new_process()


def gateway_too_new(query):
    yield from of_another_release(query, gateway_side, 9)


def gateway_too_old(query):
    yield from of_another_release(query, gateway_side, 0)


def job_too_new(query):
    yield from of_another_release(query, client_side, 9)


def job_too_old(query):
    yield from of_another_release(query, client_side, 0)


def of_another_release(query, side, version):
    speak(query, side, v=version, min_v=version)
    yield "upgrade the older side"
    query.stack.close()
    query.new_process()


TROUBLES = [
    wrong_token,
    limits,
    no_worker,
    unknown_format,
    unknown_storage,
    gateway_too_new,
    gateway_too_old,
    job_too_new,
    job_too_old,
]
BY_DEFAULT = {
    "fail": [limits, no_worker, job_too_old],
    "fallback": [no_worker, unknown_format, job_too_old],
}
"""With `fail` one of each kind: what waiting cannot help, what may pass, another release.

`client/test_client_gateways.py` has the others, and `test_protocol` both ends of a range.
"""


@pytest.mark.parametrize(
    ("trouble", "strategy"),
    [
        pytest.param(trouble, strategy, marks=[] if trouble in by_default else [pytest.mark.slow])
        for strategy, by_default in BY_DEFAULT.items()
        for trouble in TROUBLES
    ],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_what_the_service_suffers_stops_a_query_only_if_told_to(trouble, strategy):
    with contextlib.closing(Query(failure_strategy=strategy)) as query:
        for _ in range(6):
            query.batch()
        steps = trouble(query)
        why = next(steps)
        if strategy == "fallback":
            run_until(query, lambda: query.count("fallbacks") > 0)
            assert query.count("fallbacks") > 0
        else:
            with pytest.raises(StorageError, match=why):
                run(query)
            for _ in range(3):  # Spark's retries
                with pytest.raises(StorageError, match=why):
                    query.batch()
        done, fallbacks = query.count("done"), query.count("fallbacks")
        assert next(steps, None) is None
        security = query.client._here.options.security
        query.new_process(security=security, queue_timeout_s=PATIENCE_S)
        run_until(query, lambda: query.count("done") > done)
        query.check()
        assert query.count("done") > done
        assert query.count("fallbacks") == fallbacks


@pytest.mark.parametrize("strategy", ["fallback", "fail"])
def test_a_process_without_another_thread_costs_the_jobs_of_that_moment(strategy):
    begin = threading.Thread.start

    def refused(thread):
        if thread.name.startswith("forebay-remote"):
            raise RuntimeError("can't start new thread")
        begin(thread)

    given = {"failure_strategy": strategy, "queue_timeout_s": PATIENCE_S}
    with contextlib.closing(Query(**given)) as query:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Thread, "start", refused)
            for _ in range(BATCHES):
                if query.count("submitted"):
                    break
                query.batch()
        assert query.count("submitted") == query.count("lost") == 1
        run_until(query, lambda: query.count("done") > 0)
        query.check()
        assert query.count("done") > 0
        assert query.count("fallbacks") == 0


@pytest.mark.parametrize("retries", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_with_fail_a_worker_that_goes_on_damaging_results_stops_the_query(retries):
    given = {"failure_strategy": "fail", "request_retries": retries, "queue_timeout_s": 30.0}
    with contextlib.closing(Query(**given, clock=(clock := Clock()))) as query:
        for _ in range(4):
            query.batch()
        query.body.damages = [flipped] * 1000
        run_until(query, lambda: query.count("verify_failures") > retries + 1)
        assert query.count("verify_failures") > retries + 1, "it has time to recover"
        clock.now += 31.0
        with pytest.raises(StorageError, match="failure-strategy is 'fail'"):
            run(query)
        query.new_process(failure_strategy="fail")
        query.body.damages = []
        done = query.count("done")
        run_until(query, lambda: query.count("done") > done)
        query.check()
        assert query.count("done") > done


def flipped(data):
    return data[:-1] + bytes([data[-1] ^ 0xFF])


@pytest.mark.parametrize("count", [1, 1000])
def test_altered_results_stop_no_query(query, count):
    """Nothing of them is installed; their inputs still exist and are compacted again."""
    for _ in range(4):
        query.batch()
    query.body.damages = [flipped] * count
    again = "fallbacks" if count > 1 else "done"
    before = query.count(again)

    def over():
        installed = any("/compaction-" in name for name in query.live())
        return query.count("verify_failures") and installed and query.count(again) > before

    run_until(query, over)
    assert query.count(again) > before
    query.check()
    assert query.count("verify_failures") >= 1
    assert any("/compaction-" in name for name in query.live())
    assert (query.count("fallbacks") > 0) == (count > 1)


@pytest.mark.parametrize("damage", ["missing", "altered"])
def test_a_damaged_input_stops_the_query(query, damage):
    query.new_process(queue_timeout_s=PATIENCE_S)
    while query.count("submitted") < 1:
        query.gateway.on_loop(lambda: query.gateway.core.worker_set.scale(0))
        query.batch(wait=False)
    (tracked,) = [t for t in query.client._jobs.values() if t.job is not None]
    name = tracked.job.inputs[0].name
    data = bytearray(query.storage.get(name))
    query.storage.delete([name])
    if damage == "altered":
        data[len(data) // 2] ^= 0xFF
        query.storage.put(name, bytes(data))
    query.gateway.on_loop(lambda: query.gateway.core.worker_set.scale(1))
    query.settle()
    assert tracked.status.phase is CompactionPhase.FAILED
    query.batch()  # submits it again
    query.settle()
    with pytest.raises(CorruptStateError, match=name.rpartition("/")[2]):
        query.batch()
    assert query.count("fallbacks") > 0, "the local compaction was the judge"
