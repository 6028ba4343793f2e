"""Jobs: named by a manifest, submitted, watched, and given up; `test_results` has the rest."""

from __future__ import annotations

import contextlib
import math

import attrs
import pytest

from forebay_backend_lsm.compaction_jobs import PendingJob
from forebay_backend_lsm.layers import layers_of
from forebay_backend_lsm.options import LsmOptions
from forebay_state_api.contract.backend import NO_TIME
from forebay_state_api.contract.checksummed import seal
from forebay_state_api.contract.compaction_job import CompactionJob
from forebay_state_api.contract.compaction_service import (
    CompactionFault,
    CompactionPhase,
    CompactionStatus,
)
from forebay_state_api.contract.file_names import compaction_run_prefix
from forebay_state_api.errors import CorruptStateError, PluginError, StorageError
from forebay_state_api.keys import KeyGroupRange
from forebay_testing import ImmediateCompaction

from .chain import MINUTE_US, RULES, Chain, cell, until_pending
from .toy import ToyCompactor

ALL = KeyGroupRange(0, 7)


def runs(chain: Chain) -> int:
    return max(len(layers_of(one.files)) for one in chain.newest)


def test_a_job_is_named_by_the_manifest_before_it_is_submitted(chain: Chain) -> None:
    chain.commit(cell(1, 1))
    attempt = chain.attempt(cell(2, 2))
    (pending,) = attempt[1].meta["compaction"]["pending"]
    job = CompactionJob.from_plain(pending["job"])
    assert not chain.service.submitted
    assert attempt[1].protected == [job.output_prefix]
    chain.install(attempt)
    assert chain.service.submitted == [job]
    assert job.now_us == chain.now_us
    assert job.options == {"bottom": True}


def test_an_attempt_that_does_not_commit_submits_nothing(chain: Chain) -> None:
    chain.commit(cell(1, 1))
    chain.attempt(cell(2, 2))
    assert not chain.service.submitted


def test_the_next_opening_reads_and_names_what_the_job_left(chain: Chain) -> None:
    job = until_pending(chain)
    before = chain.content()
    chain.run_jobs()
    opened = chain.opened()
    assert {file.name for file in opened.files}.isdisjoint(file.name for file in job.inputs)
    chain.commit(cell(50, 50))
    assert chain.content() == {**before, **cell(50, 50)}
    assert job.id not in chain.pending()


def test_any_process_finds_the_result(chain: Chain) -> None:
    job = until_pending(chain)
    chain.run_jobs()
    chain.other_process()
    chain.commit()
    assert chain.newest[0].files[0].meta["job"] == job.id
    assert chain.pending() == []


def test_a_job_that_is_under_way_stays_pending(chain: Chain) -> None:
    job = until_pending(chain)
    chain.now_us += 60 * MINUTE_US
    chain.commit()
    assert chain.pending() == [job.id]
    assert len(chain.service.submitted) == 1


def test_a_job_without_a_sign_of_life_is_submitted_again(
    chain: Chain, caplog: pytest.LogCaptureFixture
) -> None:
    job = until_pending(chain)
    chain.other_process()
    chain.now_us += 9 * MINUTE_US
    chain.commit()
    assert chain.pending() == [job.id]
    assert not caplog.records
    chain.now_us += MINUTE_US
    chain.commit()
    (logged,) = caplog.messages
    assert f"compaction {job.id} of q/u shows no sign of life for 600 s" in logged
    assert "the compaction service does not know it" in logged
    assert "Attempt 2 follows" in logged
    (again,) = chain.service.submitted
    assert chain.pending() == [again.id]
    assert again.output_prefix != job.output_prefix
    assert (job.attempt, again.attempt) == (1, 2)
    fresh = {"id": job.id, "output_prefix": job.output_prefix, "attempt": 1}
    assert attrs.evolve(again, **fresh) == job


def test_a_heartbeat_is_a_sign_of_life(chain: Chain) -> None:
    job = until_pending(chain)
    chain.other_process()
    for beat in range(3):
        chain.now_us += 10 * MINUTE_US
        run = attrs.evolve(job, output_prefix=compaction_run_prefix(job.output_prefix))
        chain.storage.put(run.heartbeat_name(1 + beat % 2), seal({}))
        chain.commit()
        assert chain.pending() == [job.id]
    chain.now_us += 10 * MINUTE_US
    chain.commit()
    assert job.id not in chain.pending()


def test_a_batch_without_a_time_gives_no_job_up(chain: Chain) -> None:
    job = until_pending(chain)
    chain.other_process()
    later, chain.now_us = chain.now_us + 60 * MINUTE_US, NO_TIME
    chain.commit()
    assert chain.pending() == [job.id]
    chain.now_us = later
    chain.commit()
    assert job.id not in chain.pending()


def test_a_job_that_a_batch_without_a_time_submitted_gets_its_time(chain: Chain) -> None:
    chain.now_us, later = NO_TIME, chain.now_us
    job = until_pending(chain)
    chain.other_process()
    chain.now_us = later
    chain.commit()
    assert chain.pending() == [job.id]
    chain.now_us += 10 * MINUTE_US
    chain.commit()
    assert job.id not in chain.pending()


def test_what_older_state_says_of_a_batch_without_a_time(chain: Chain) -> None:
    job = until_pending(chain)
    plain = PendingJob(job=job, alive_us=NO_TIME).to_plain()
    assert PendingJob.from_plain({**plain, "alive_us": 0}).alive_us == NO_TIME


def test_the_lease_follows_a_slow_trigger(chain: Chain) -> None:
    chain.commit(cell(1, 1))
    chain.now_us += 60 * MINUTE_US
    chain.commit()
    chain.now_us += 2 * MINUTE_US
    chain.commit(cell(2, 2))
    (job,) = chain.service.submitted
    assert job.lease_s == 3 * 60 * 60
    assert job.heartbeat_s == 60


def test_a_zombie_that_finishes_late_never_goes_live(chain: Chain) -> None:
    job = until_pending(chain)
    zombie = chain.service
    chain.other_process()
    chain.now_us += 10 * MINUTE_US
    chain.commit()
    zombie.run(job)
    for number in range(30, 40):
        chain.run_jobs()
        chain.commit(cell(number, number))
        names = [file.name for one in chain.newest for file in one.files]
        assert not any(name.startswith(job.output_prefix) for name in names)


def test_two_attempts_may_install_different_results(chain: Chain) -> None:
    """One opens before the job is done and one after it: either may become the version."""
    job = until_pending(chain)
    early = chain.attempt(cell(70, "early"))
    chain.run_jobs()
    late = chain.attempt(cell(70, "late"))
    late[0].installed()
    assert next(file.meta.get("job") for file in late[1].files) == job.id
    before = chain.content()
    for attempt, value in ((early, "early"), (late, "late")):
        chain.newest = [attempt[1]]
        assert chain.content() == {**before, **cell(70, value)}
        chain.commit()
        assert chain.content() == {**before, **cell(70, value)}


def test_a_result_of_inputs_that_are_gone_is_ignored(chain: Chain) -> None:
    job = until_pending(chain)
    chain.run_jobs()
    kept = chain.content()
    (one,) = chain.newest
    # As after a compaction in the foreground: the inputs were merged into another file.
    merged = chain.write(kept, ALL)
    chain.newest = [attrs.evolve(one, files=merged)]
    chain.commit()
    assert [file.name for file in chain.newest[0].files] == [merged[0].name]
    assert chain.pending() == []
    assert chain.service.discarded == [job.id]


def test_a_rescale_drops_the_pending_jobs(chain: Chain) -> None:
    job = until_pending(chain)
    before = chain.content()
    chain.run_jobs()
    chain.rescale(2)
    chain.commit()
    assert job.id not in chain.pending()
    assert chain.content() == before


def test_a_fork_drops_the_pending_jobs(chain: Chain) -> None:
    job = until_pending(chain)
    chain.run_jobs()
    opened = chain.opened(operator="other/u")
    assert opened.files == chain.newest[0].files
    assert job.output_prefix not in opened.commit(9, [], options={}).protected


def test_without_a_service_nothing_is_submitted_and_the_bound_holds(chain: Chain) -> None:
    for number in range(20):
        opened = chain.opened(compaction=None)
        chain.newest = [chain.committed(opened, ALL, cell(number, number))]
        opened.installed()
        assert runs(chain) <= RULES.max_runs
    assert chain.newest[0].meta == {}
    assert len(chain.content()) == 20


def test_runs_stay_bounded_while_no_job_is_ever_done(chain: Chain) -> None:
    for number in range(60):
        chain.now_us += MINUTE_US
        chain.commit(cell(number, number))
        if number % 7 == 0:
            chain.other_process()
        assert runs(chain) <= RULES.max_runs
    assert len(chain.content()) == 60


def test_a_commit_of_many_runs_is_relieved_at_once(chain: Chain) -> None:
    job = until_pending(chain)
    opened = chain.opened()
    spills = [file for n in range(12) for file in chain.write(cell(n, f"n{n}"), ALL)]
    made = opened.commit(chain.version + 1, spills, options={})
    assert made.bytes_written > 0
    assert len(layers_of(made.files)) <= RULES.max_runs
    chain.newest = [chain.manifest(made, ALL)]
    opened.installed()
    assert chain.content()[1, "k1"] == "n1"
    assert job.id in chain.pending()


class Stuck(ImmediateCompaction):
    """Reports every job to be in one phase."""

    phase = CompactionPhase.QUEUED

    def poll(self, job_id: str, timeout_s: float = 0.0) -> CompactionStatus:
        del timeout_s
        return CompactionStatus(job_id, self.phase)


def rewrites_of_small_changes(chain: Chain, commits: int, phase: CompactionPhase) -> float:
    """Return how often commits rewrite a cell while all jobs are in ``phase``, on average."""
    chain.service = Stuck(chain.root, hold=True)
    chain.service.phase = phase
    chain.rules = LsmOptions()
    content = {(n % 8, f"old{n}"): n for n in range(20 * commits)}
    chain.commit(content)
    for number in range(commits):
        chain.commit(cell(number, number))
        content |= cell(number, number)
    assert chain.content() == content
    merged = [file.meta["entries"] for job in chain.compactor.jobs for file in job.inputs]
    return sum(merged) / commits


@pytest.mark.parametrize("phase", [CompactionPhase.QUEUED, CompactionPhase.LOST])
def test_small_changes_are_joined_cheaply_while_no_job_runs(
    chain: Chain, phase: CompactionPhase
) -> None:
    rewrites = rewrites_of_small_changes(chain, 500, phase)
    assert 1 < rewrites < math.log2(500)


def test_a_job_that_runs_is_waited_for(chain: Chain) -> None:
    rewrites_of_small_changes(chain, 500, CompactionPhase.RUNNING)
    (job,) = chain.service.submitted
    assert chain.pending() == [job.id]


def test_where_nothing_is_new_nothing_is_picked(chain: Chain) -> None:
    chain.commit(cell(1, 1))
    (one,) = chain.newest
    chain.newest = [attrs.evolve(one, files=[*one.files, *chain.write(cell(1, 2), ALL)])]
    chain.commit()
    assert not chain.service.submitted
    chain.commit(cell(2, 2))
    assert chain.service.submitted


def test_relief_may_leave_nothing(chain: Chain) -> None:
    opened = chain.opened()
    deletes = [file for _ in range(6) for file in chain.write(cell(1), ALL)]
    made = opened.commit(1, deletes, options={})
    assert made.files == []
    assert made.bytes_written == 0


def test_pending_jobs_are_forgotten_when_they_hold_too_many_runs(chain: Chain) -> None:
    job = until_pending(chain)
    chain.rules = LsmOptions(max_runs=2, target_file_bytes=1_000)
    before = chain.content()
    opened = chain.opened()
    # Each commit adds a run, and the pending job holds all the others.
    held = len(job.inputs)
    chain.newest = [chain.committed(opened, ALL, cell(60, 60))]
    opened.installed()
    chain.commit(cell(61, 61))
    assert held >= 2
    assert runs(chain) <= 2
    assert chain.content() == {**before, **cell(60, 60), **cell(61, 61)}


class Faulty(ToyCompactor):
    """Fails once with the given error, then works."""

    def __init__(self, *faults: Exception) -> None:
        super().__init__()
        self.faults = [*faults]

    def compact(self, job, storage, cancelled):
        if self.faults:
            raise self.faults.pop(0)
        return super().compact(job, storage, cancelled)


@pytest.mark.parametrize(
    ("fault", "error"),
    [(CorruptStateError("a block"), CorruptStateError), (KeyError("bug"), PluginError)],
)
def test_a_second_failure_of_the_same_work_stops_the_query(
    chain: Chain, fault: Exception, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    chain.compactor = Faulty(fault, StorageError("by the way"), fault)
    until_pending(chain)
    for attempt in (2, 3):
        chain.run_jobs()
        chain.commit()
        assert chain.service.submitted[-1].attempt == attempt
    assert f"failed, and is tried once more: {fault}" in caplog.text
    chain.run_jobs()
    for _ in range(4):  # Spark's retries
        with pytest.raises(error, match=f"failed again: {fault}"):
            chain.commit()


def test_one_bad_moment_does_not_stop_the_query(chain: Chain) -> None:
    chain.compactor = Faulty(KeyError("bug"))
    until_pending(chain)
    before = chain.content()
    for _ in range(3):
        chain.run_jobs()
        chain.commit()
    assert chain.newest[0].files[0].meta["job"] == chain.service.submitted[1].id
    assert chain.content() == before


def test_a_restarted_query_makes_up_its_own_mind(chain: Chain) -> None:
    """The worker process and its service outlive the query; the fault has been mended."""
    chain.compactor = Faulty(KeyError("bug"), KeyError("bug"))
    until_pending(chain)
    for _ in range(2):
        chain.run_jobs()
        with contextlib.suppress(PluginError):
            chain.commit()
    with pytest.raises(PluginError):
        chain.commit()
    chain.run = "the second run"
    chain.commit()
    assert [job.attempt for job in chain.service.submitted] == [1, 2, 3]
    chain.run_jobs()
    chain.commit()
    assert chain.newest[0].files[0].meta["job"] == chain.service.submitted[-1].id


def test_a_restarted_query_stops_for_failures_of_its_own(chain: Chain) -> None:
    chain.compactor = Faulty(*[KeyError("bug")] * 4)
    until_pending(chain)
    for run in ("the first run", "the second run"):
        chain.run = run
        for _ in range(2):
            chain.commit()
            chain.run_jobs()
        with pytest.raises(PluginError):
            chain.commit()
    assert len(chain.service.submitted) == 4


def test_a_restarted_query_submits_what_nobody_works_on_at_once(chain: Chain) -> None:
    job = until_pending(chain)
    chain.run = "the second run"
    chain.commit()
    assert chain.pending() == [job.id]  # under way
    chain.other_process()
    chain.commit()
    (again,) = chain.service.submitted
    assert again.attempt == job.attempt + 1


def test_a_service_that_gives_up_fails_the_task_with_its_reason(chain: Chain) -> None:
    job = until_pending(chain)
    gave_up = CompactionStatus(
        job.id, CompactionPhase.FAILED, CompactionFault.UNAVAILABLE, "nobody answers"
    )
    chain.service.poll = lambda job_id, timeout_s=0.0: gave_up
    with pytest.raises(StorageError, match="nobody answers"):
        chain.commit()
    chain.run = "the second run"
    chain.commit()
    assert chain.pending() == [chain.service.submitted[1].id]


def test_a_transient_fault_leads_to_another_submission(chain: Chain) -> None:
    chain.compactor = Faulty(StorageError("unreachable"))
    job = until_pending(chain)
    chain.run_jobs()
    chain.commit()
    (_, again) = chain.service.submitted
    assert again.id != job.id
    chain.run_jobs()
    chain.commit()
    assert chain.newest[0].files[0].meta["job"] == again.id


def test_a_service_that_cannot_be_reached_does_not_fail_the_batch(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(job: CompactionJob) -> None:
        raise StorageError(job.id)

    with monkeypatch.context() as patch:
        patch.setattr(chain.service, "submit", unreachable)
        chain.commit(cell(1, 1))
        chain.commit(cell(2, 2))
    (lost,) = chain.pending()
    chain.now_us += 10 * MINUTE_US
    chain.commit()
    assert chain.pending() == [chain.service.submitted[0].id] != [lost]
