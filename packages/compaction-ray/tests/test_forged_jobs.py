"""Clients can neither overwrite live files nor forge the results of others."""

from __future__ import annotations

import attrs
import pytest
from compaction_ray_query import RETENTION
from compaction_ray_toys import PATIENCE_S

from forebay_compaction_ray.client.gateway import Gateway
from forebay_compaction_ray.credentials import Credentials
from forebay_compaction_ray.messages import Submission
from forebay_state_api.contract.compaction_service import CompactionFault, CompactionPhase

pytestmark = pytest.mark.long


@pytest.fixture
def stranger(query):
    """A client of the gateway that submits whatever it likes; returns the last state of each."""
    gateway = Gateway(query.gateway.address, Credentials, timeout_s=PATIENCE_S)

    def submit(job):
        gateway.submit(Submission(job=job, storage="default"))
        return gateway.poll(job.id, PATIENCE_S)

    yield submit
    gateway.close()


def jobs_of(query):
    return [tracked.job for tracked in query.client._jobs.values() if tracked.job is not None]


def go_on(query):
    for _ in range(RETENTION + 6):
        query.batch()


def contents(query):
    return {name: query.storage.get(name) for name in query.names()}


def test_a_live_file_cannot_be_overwritten(query, stranger):
    seen = {}
    while not any(name.startswith(prefix) for prefix in seen for name in query.live()):
        query.batch()
        seen |= {job.output_prefix: job for job in jobs_of(query)}
    installed = next(
        job for prefix, job in seen.items() if any(n.startswith(prefix) for n in query.live())
    )
    before = contents(query)
    forged = attrs.evolve(installed, id="forged", inputs=installed.inputs[:1], now_us=1)
    view = stranger(forged)
    assert (view.phase, view.fault) == (CompactionPhase.FAILED, CompactionFault.TRANSIENT)
    assert "belongs to a job with another description" in view.message
    assert contents(query) == before
    go_on(query)
    query.check()


def test_a_pending_result_cannot_be_forged(query, stranger):
    """The stranger is first: the job of the query waits for a worker."""
    query.new_process(queue_timeout_s=PATIENCE_S)
    query.gateway.on_loop(lambda: query.gateway.core.worker_set.scale(0))
    while not jobs_of(query):
        query.batch(wait=False)
    (job, *_) = jobs_of(query)
    forged = Submission(
        job=attrs.evolve(job, id="forged", inputs=job.inputs[:1]),
        storage="default",
    )
    assert query.body.run(forged).phase is CompactionPhase.DONE
    query.gateway.on_loop(lambda: query.gateway.core.worker_set.scale(1))
    query.settle()
    go_on(query)
    assert not any(name.startswith(job.output_prefix) for name in query.live())
    query.check()


def test_the_same_description_only_runs_the_same_job(query, stranger):
    while not jobs_of(query):
        query.batch()
    (job, *_) = jobs_of(query)
    before = contents(query)
    assert stranger(attrs.evolve(job, id="again")).phase is CompactionPhase.DONE
    assert before.items() <= contents(query).items()
    go_on(query)
    query.check()
