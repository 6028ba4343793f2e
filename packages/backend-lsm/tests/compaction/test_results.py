"""Results of jobs: checked, and installed by a commit or refused."""

from __future__ import annotations

import re

import attrs
import pytest

from forebay_state_api.contract.checksummed import seal, unseal
from forebay_state_api.contract.compaction_job import CompactionJob, CompactionResult
from forebay_state_api.contract.compaction_service import (
    CompactionFault,
    CompactionPhase,
)
from forebay_state_api.errors import CorruptStateError
from forebay_state_api.storage.opening import open_storage
from forebay_testing import Fault, FaultyStorage

from .chain import MINUTE_US, RULES, Chain, cell, until_pending


def test_the_service_verifies_what_is_installed(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[str] = []

    def verify(job: CompactionJob, result: CompactionResult) -> None:
        verified.append(job.id)
        assert result.outputs
        raise CorruptStateError("an output is damaged")

    job = until_pending(chain)
    monkeypatch.setattr(chain.service, "verify", verify)
    chain.run_jobs()
    chain.commit()
    again = chain.service.submitted[-1]
    chain.run_jobs()
    with pytest.raises(CorruptStateError, match="is damaged"):
        chain.commit()
    assert verified == [job.id, again.id]
    monkeypatch.undo()
    chain.commit()
    assert chain.newest[0].files[0].meta["job"] == again.id


def altered(chain: Chain, job: CompactionJob, **changes: object) -> None:
    """Replace the job's result by one with some fields changed."""
    plain = unseal(chain.storage.get(job.result_name))
    chain.storage.delete([job.result_name])
    chain.storage.put(job.result_name, seal({**plain, **changes}))


def check_damaged(chain: Chain, caplog: pytest.LogCaptureFixture, message: str) -> None:
    """Check that the result is not installed, and that a second one like it stops the query."""
    before = chain.newest[0].files
    assert chain.opened().files == before
    assert re.search(message, caplog.text)
    chain.commit()
    again = chain.service.submitted[-1]
    assert again.attempt == 2
    chain.run_jobs()
    altered(chain, again, entries_in=99)
    with pytest.raises(CorruptStateError, match="99 entries went in"):
        chain.opened()
    chain.run = "the second run"
    chain.commit()
    assert chain.service.submitted[-1].attempt == 3


def output(**changes: object) -> dict[str, object]:
    return {"name": "x", "size": 1, "range": [0, 7], "meta": {}} | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"entries_in": 99}, "99 entries went in"),
        ({"entries_dropped": 7}, "7 were dropped"),
        ({"outputs": [output()]}, "but the outputs hold"),
        ({"outputs": 5}, "cannot be decoded"),
        ({"entries_in": 3000, "entries_dropped": 3000, "entries_out": 0}, "the inputs hold"),
    ],
)
def test_a_result_that_contradicts_the_job_is_refused(
    chain: Chain, caplog: pytest.LogCaptureFixture, changes: dict[str, object], message: str
) -> None:
    job = until_pending(chain)
    chain.run_jobs()
    altered(chain, job, **changes)
    check_damaged(chain, caplog, message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "data/elsewhere"}, "is not below the job's prefix"),
        ({"name": "../u/data/elsewhere"}, "is not below the job's prefix"),
        ({"size": 3}, "of 3 bytes has"),
        ({"range": [0, 99]}, "is for key groups 0..99"),
    ],
)
def test_outputs_are_checked_one_by_one(
    chain: Chain, caplog: pytest.LogCaptureFixture, changes: dict[str, object], message: str
) -> None:
    job = until_pending(chain)
    chain.run_jobs()
    (first,) = unseal(chain.storage.get(job.result_name))["outputs"]
    altered(chain, job, outputs=[{**first, **changes}])
    check_damaged(chain, caplog, message)


def test_a_missing_output_is_named(chain: Chain, caplog: pytest.LogCaptureFixture) -> None:
    job = until_pending(chain)
    chain.run_jobs()
    chain.storage.delete([job.stored_result(chain.storage).outputs[0].name])
    check_damaged(chain, caplog, r"0000 of \d+ bytes is missing")


def test_a_torn_result_is_none_and_an_altered_one_is_damaged(
    chain: Chain, caplog: pytest.LogCaptureFixture
) -> None:
    job = until_pending(chain)
    chain.run_jobs()
    whole = chain.storage.get(job.result_name)
    chain.storage.delete([job.result_name])
    chain.storage.put(job.result_name, whole[:-3])
    assert chain.opened().files == chain.newest[0].files
    chain.storage.delete([job.result_name])
    chain.storage.put(job.result_name, whole[:-1] + bytes([whole[-1] ^ 1]))
    check_damaged(chain, caplog, "altered")


def test_a_result_that_is_deleted_lets_the_job_run_again(chain: Chain) -> None:
    job = until_pending(chain)
    chain.run_jobs()
    altered(chain, job, entries_in=99)
    chain.storage.delete([job.result_name])
    chain.now_us += 10 * MINUTE_US
    chain.commit()
    assert len(chain.service.submitted) == 2


def test_a_forged_result_is_ignored_and_the_job_is_submitted_again(
    chain: Chain, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody submits a job that loses a run, below the prefix of a pending job."""
    job = until_pending(chain)
    before = chain.content()
    forger = chain.new_service()
    forged = attrs.evolve(job, id="forged", inputs=job.inputs[1:])
    forger.submit(forged)
    forger.run(forged)
    assert forger.poll("forged").phase is CompactionPhase.DONE
    chain.run_jobs()
    status = chain.service.poll(job.id)
    assert (status.phase, status.fault) == (CompactionPhase.FAILED, CompactionFault.TRANSIENT)
    assert "belongs to a job with another description" in status.message
    chain.commit()
    assert chain.content() == before
    assert "is ignored" in caplog.text
    (_, again) = chain.service.submitted
    chain.run_jobs()
    chain.commit()
    assert chain.newest[0].files[0].meta["job"] == again.id
    assert chain.content() == before


def test_a_job_that_runs_twice_is_installed_once(chain: Chain) -> None:
    """The job's owner runs it, while a worker that was given up is still at it."""
    job = until_pending(chain)
    before = chain.content()
    zombie = chain.new_service()
    zombie.submit(job)
    chain.run_jobs()
    zombie.run(job)
    result = job.stored_result(chain.storage)
    chain.commit()
    assert [file.name for file in chain.newest[0].files] == [f.name for f in result.outputs]
    assert chain.content() == before


def test_a_crash_between_the_last_output_and_the_result_leaves_no_result() -> None:
    faults = FaultyStorage(open_storage("memory://compaction-crash"))
    chain = Chain(RULES, faults)
    job = until_pending(chain)
    faults.faults.append(Fault(operation="put_if_absent", name="*/result"))
    chain.run_jobs()
    assert [info.name for info in chain.storage.list(job.output_prefix)]
    chain.commit()
    assert job.id not in chain.pending()
    chain.run_jobs()
    chain.commit()
    assert chain.newest[0].files[0].meta["job"] == chain.service.submitted[1].id


def test_an_empty_result_is_a_result(chain: Chain) -> None:
    chain.commit(cell(1, 1))
    chain.commit(cell(1))
    chain.run_jobs()
    chain.commit()
    assert chain.newest[0].files == []
    assert chain.content() == {}


def test_the_same_job_gives_the_same_bytes(chain: Chain) -> None:
    job = until_pending(chain)
    chain.run_jobs()
    second = attrs.evolve(job, id="other", output_prefix="data/other/")
    result = chain.compactor.compact(second, chain.storage, lambda: False)
    assert isinstance(result, CompactionResult)
    stored = job.stored_result(chain.storage)
    for file, twin in zip(result.outputs, stored.outputs, strict=True):
        assert chain.storage.get(twin.name) == chain.storage.get(file.name)
