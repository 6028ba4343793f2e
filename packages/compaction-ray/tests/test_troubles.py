"""Whatever befalls the service, the state is as if undisturbed, and no unneeded file stays."""

from __future__ import annotations

import pytest
from compaction_ray_query import BATCHES, RETENTION, run, speak
from compaction_ray_toys import PATIENCE_S, black_hole, counted, dead_address

from forebay_compaction_ray.gateway import server as gateway_side
from forebay_state_api.contract.compaction_service import CompactionPhase

pytestmark = pytest.mark.long

IMPATIENT = {"queue_timeout_s": 0.05, "request_retries": 0}
"""A process that soon does itself what no gateway takes: in these troubles most of its jobs."""


def test_undisturbed(query):
    query.new_process(queue_timeout_s=PATIENCE_S)
    run(query)
    query.check()
    assert query.count("done") > 1
    assert query.count("lost") == query.count("fallbacks") == 0
    assert any("/compaction-" in name for name in query.live())


def nothing_waits(query, number):
    """Batches follow each other while compactions are running."""
    query.batch(wait=False)


def no_gateway(query, number):
    if number == 3:
        query.new_process(dead_address(), **IMPATIENT)
    query.batch()


def gateway_begins_again(query, number):
    query.batch(wait=False)
    if number % 4 == 3:
        query.new_gateway()


def process_ends(query, number):
    """It ends before its jobs are sent, or after; another process asks the gateway for them."""
    query.batch(wait=False)
    if number % 4:
        query.until_taken()
    query.new_process()


def process_ends_and_gateway_begins_again(query, number):
    query.batch(wait=False, minutes=5)
    if number % 5 == 4:
        query.end_process()
        query.new_gateway()
        query.new_process()


def workers_die(query, number):
    query.body.deaths += number % 6 == 2
    query.batch()


def storage_fails_in_passing(query, number):
    query.compactor.failures = number % 5
    query.batch()


def gateway_drains(query, number):
    if number == 5:
        query.new_process(**IMPATIENT)
        query.gateway.on_loop(query.gateway.core.drain)
    query.batch()


def workers_are_taken_away_and_come_back(query, number):
    if number == 0:
        query.new_process(**IMPATIENT)
    query.gateway.on_loop(lambda: query.gateway.core.worker_set.scale(number % 3))
    query.batch()


def an_hour_between_batches(query, number):
    query.batch(minutes=70)


def gateway_accepts_and_never_answers(query, number):
    if number == 4:
        silent = query.stack.enter_context(black_hole())
        query.new_process(silent, answer_s=0.05, **IMPATIENT)
    query.batch()


def queue_is_full(query, number):
    if number in (4, 14):
        query.new_gateway(queue=0 if number == 4 else 8)
        query.new_process(**(IMPATIENT if number == 4 else {}))
    query.batch()
    assert number != 13 or query.count("fallbacks") > 0


def jobs_run_out_of_time(query, number):
    """They are aborted at the gateway, and then done here."""
    if number == 4:
        query.compactor.go.clear()
        query.new_process(request_timeout_s=0.05)
    query.batch()


def results_are_torn(query, number):
    """Their stored parts cannot be decoded, so none of them counts."""
    if number % 3 == 0:
        query.body.damages = [lambda data: data[:-1]]
    query.batch()
    assert number != BATCHES - 1 or query.count("lost") > 0


def gateway_is_newer_and_understands(query, number):
    if number == 0:
        speak(query, gateway_side, v=9, min_v=1, news="from a later release")
    query.batch()
    assert number != BATCHES - 1 or query.count("done") > 1


BY_DEFAULT = [
    no_gateway,
    gateway_begins_again,
    process_ends,
    process_ends_and_gateway_begins_again,
    an_hour_between_batches,
    results_are_torn,
]
COVERED_ELSEWHERE = [
    nothing_waits,
    workers_die,
    storage_fails_in_passing,
    gateway_drains,
    workers_are_taken_away_and_come_back,
    gateway_accepts_and_never_answers,
    queue_is_full,
    jobs_run_out_of_time,
    gateway_is_newer_and_understands,
]
"""Troubles that a client in `client/`, or a query in another test here, has by default."""


@pytest.mark.parametrize(
    "trouble",
    [*BY_DEFAULT, *(pytest.param(one, marks=pytest.mark.slow) for one in COVERED_ELSEWHERE)],
    ids=lambda trouble: trouble.__name__,
)
def test_the_state_is_that_of_an_undisturbed_query(query, trouble):
    for number in range(BATCHES):
        trouble(query, number)
    query.settle()
    query.batch()
    query.check()
    assert any("/compaction-" in name for name in query.live()), "nothing was compacted"


def test_a_worker_that_always_dies_leads_to_compaction_in_the_job(query):
    for _ in range(BATCHES // 2):
        query.body.deaths = BATCHES
        query.batch()
    assert query.count("fallbacks") > 0
    assert counted(query.gateway.core, "jobs_finished", outcome="done") == 0
    query.check()
    assert any("/compaction-" in name for name in query.live())


@pytest.mark.parametrize("deaths", [1, BATCHES])
def test_what_zombies_finish_late_never_goes_live(query, deaths):
    """The job is done by another worker, or in the process, below the same prefix."""
    query.new_process(queue_timeout_s=PATIENCE_S)
    while not query.body.zombies:
        query.body.deaths = deaths
        query.batch()
    query.body.deaths = 0
    assert query.count("fallbacks") == (deaths > 1)
    query.batch()
    assert any("/compaction-" in name for name in query.live())
    before = query.names()
    for zombie in query.body.zombies:
        assert query.body.run(zombie).phase is CompactionPhase.DONE
    late = query.names() - before
    assert late
    for _ in range(RETENTION + 6):
        assert not late & query.live()
        query.batch()
    query.check()
    assert not late & query.names()


def test_a_result_of_a_run_that_went_back_is_ignored(query):
    """The query is restarted from an older version, so nobody owns jobs submitted later."""
    query.new_process(queue_timeout_s=PATIENCE_S)
    for _ in range(3):
        query.batch()
    model, batch_id = dict(query.model), query.job.batch_id
    query.gateway.on_loop(lambda: query.gateway.core.worker_set.scale(0))
    submitted = query.count("submitted")
    while query.count("submitted") == submitted:
        query.batch(wait=False)
    late = [t.job for t in query.client._jobs.values() if t.job is not None][-1]
    query.job.restart(batch_id=batch_id)
    query.model = model
    query.new_process()
    query.gateway.on_loop(lambda: query.gateway.core.worker_set.scale(1))
    for _ in range(RETENTION + 6):
        query.batch()
    assert not [name for name in query.live() if name.startswith(late.output_prefix)]
    query.check()
