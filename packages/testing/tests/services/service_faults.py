"""Services that each break the contract in one point, with the row of the kit that finds it."""

from __future__ import annotations

from forebay_engine.compaction.local_service import LocalCompactionService
from forebay_state_api.contract.checksummed import seal
from forebay_state_api.contract.compaction_service import (
    CompactionFault,
    CompactionPhase,
    CompactionStatus,
)
from forebay_testing import ImmediateCompaction
from forebay_testing.services import CompactionServiceTests as Rows

FAULTS = {}


def caught_by(row, **case):
    """Plant a fault; ``case`` are the row's parameters."""

    def plant(broken):
        FAULTS[broken.__name__] = broken, row, case
        return broken

    return plant


class Local(LocalCompactionService):
    """The service of the worker process; subclasses break it."""

    contract_version = 2


@caught_by(Rows.test_a_job_that_is_done_has_a_durable_result)
class CallsTheCompactorItself(ImmediateCompaction):
    contract_version = 2

    def run(self, job):
        own = self._storage.child(job.operator)
        from forebay_state_api.plugins import plugins

        plugins().compactor(job.format).compact(job, own, lambda: False)
        self._statuses[job.id] = CompactionStatus(job.id, CompactionPhase.DONE)


@caught_by(Rows.test_a_prefix_of_another_job_is_left_alone)
class ClaimsNothing(ImmediateCompaction):
    contract_version = 2

    def run(self, job):
        from forebay_state_api.plugins import plugins

        own = self._storage.child(job.operator)
        result = plugins().compactor(job.format).compact(job, own, lambda: False)
        own.put(job.result_name, seal({**result.to_plain(), "job_digest": job.digest}))
        self._statuses[job.id] = CompactionStatus(job.id, CompactionPhase.DONE)


@caught_by(Rows.test_submitting_does_not_wait)
class WaitsInSubmit(Local):
    def submit(self, job):
        super().submit(job)
        self.poll(job.id, 30)


@caught_by(Rows.test_the_result_comes_before_the_phase)
class DoneBeforeItIs(Local):
    def poll(self, job_id, timeout_s=0.0):
        status = super().poll(job_id, timeout_s)
        if status.phase is CompactionPhase.RUNNING:
            return CompactionStatus(job_id, CompactionPhase.DONE)
        return status


@caught_by(Rows.test_a_known_id_is_not_taken_again)
class TakesAJobAgain(Local):
    def submit(self, job):
        self._runs.pop(job.id, None)
        super().submit(job)


@caught_by(Rows.test_a_job_that_was_never_submitted_is_unknown)
class RaisesForUnknownJobs(Local):
    def poll(self, job_id, timeout_s=0.0):
        return self._runs[job_id].status if not timeout_s else super().poll(job_id, timeout_s)


@caught_by(Rows.test_polling_waits_no_longer_than_it_may)
class PollsUntilTheEnd(Local):
    def poll(self, job_id, timeout_s=0.0):
        return super().poll(job_id, 30 if timeout_s else 0)


@caught_by(Rows.test_a_job_that_fails_says_how_until_it_is_released, fault="corrupt")
class EveryFailureIsTransient(Local):
    def poll(self, job_id, timeout_s=0.0):
        status = super().poll(job_id, timeout_s)
        if status.fault is None:
            return status
        fault = CompactionFault.TRANSIENT
        return CompactionStatus(job_id, status.phase, fault, status.message)


@caught_by(Rows.test_a_job_that_fails_says_how_until_it_is_released, fault="bug")
class ReportsAFailureOnce(Local):
    def poll(self, job_id, timeout_s=0.0):
        status = super().poll(job_id, timeout_s)
        if status.phase is CompactionPhase.FAILED:
            self.release(job_id)
        return status


@caught_by(Rows.test_an_aborted_job_ends_as_aborted)
class AbortsWhatIsDone(Local):
    def abort(self, job_id):
        super().abort(job_id)
        done = self._runs.get(job_id)
        if done is not None and done.status.phase is CompactionPhase.DONE:
            done.status = CompactionStatus(job_id, CompactionPhase.ABORTED)


@caught_by(Rows.test_a_released_job_is_unknown_and_its_objects_stay)
class DeletesWhatItReleases(Local):
    def release(self, job_id):
        run = self._runs.get(job_id)
        super().release(job_id)
        if run is not None:
            own = self._storage.child(run.job.operator)
            own.delete([info.name for info in own.list(run.job.output_prefix.rstrip("/"))])


@caught_by(Rows.test_a_released_job_is_unknown_and_its_objects_stay)
class RemembersWhatItReleased(Local):
    def release(self, job_id):
        self.abort(job_id)


@caught_by(Rows.test_a_format_without_a_compactor_is_refused_at_once)
class FindsTheCompactorLater(ImmediateCompaction):
    contract_version = 2


@caught_by(Rows.test_heartbeats_appear_while_a_job_runs)
class HasNoHeart(ImmediateCompaction):
    contract_version = 2

    def run(self, job):
        from attrs import evolve

        super().run(evolve(job, heartbeat_s=1e9))


@caught_by(Rows.test_closing_aborts_and_may_be_repeated)
class ClosesOnce(Local):
    def close(self):
        if self._closed:
            raise RuntimeError("closed")
        super().close()


@caught_by(Rows.test_the_class_says_what_it_is)
class InheritsItsVersion(Local):
    pass
