"""The contract of `forebay_state_api.contract.compaction_service`, with a small compactor."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Final

import attrs
import pytest

from forebay_state_api.contract.compaction_job import CompactionJob, CompactionResult
from forebay_state_api.contract.compaction_service import (
    CompactionFault,
    CompactionPhase,
    CompactionService,
    CompactionStatus,
)
from forebay_state_api.contract.file_names import compaction_prefix
from forebay_state_api.contract.files import StateFile
from forebay_state_api.contract.object_storage import ObjectStorage
from forebay_state_api.errors import CorruptStateError, StorageError, UnknownPluginError
from forebay_state_api.keys import KeyGroupRange
from forebay_state_api.plugins import Plugins
from forebay_state_api.storage import open_storage

OPERATOR: Final = "q/kit"
"""The operator's directory in the state directory."""
_ALL: Final = KeyGroupRange(0, 7)
_PATIENCE_S: Final = 20.0
_numbers: Final = itertools.count()

_FAULTS: Final[Mapping[str, tuple[Exception, CompactionFault]]] = {
    "storage": (StorageError("the store is away"), CompactionFault.TRANSIENT),
    "memory": (MemoryError("no memory"), CompactionFault.TRANSIENT),
    "corrupt": (CorruptStateError("an input is torn"), CompactionFault.CORRUPTION),
    "bug": (ValueError("a bug"), CompactionFault.PERMANENT),
}


class KitCompactor:
    """Joins its inputs into one file; tests hold it back or make it fail."""

    format: ClassVar[str] = "forebay-kit"
    contract_version: ClassVar[int] = 2

    def __init__(self) -> None:
        self.go = threading.Event()
        self.go.set()
        self.began = threading.Event()
        self.fault: Exception | None = None
        self.prefixes: list[str] = []
        """The output prefix of each run."""

    def compact(
        self, job: CompactionJob, storage: ObjectStorage, cancelled: Callable[[], bool]
    ) -> CompactionResult | None:
        """Compact, once it may go on."""
        self.prefixes.append(job.output_prefix)
        self.began.set()
        while True:
            if cancelled():
                return None
            if self.go.wait(0.01):
                break
        if self.fault is not None:
            raise self.fault
        data = b"".join(storage.get(file.name) for file in job.inputs)
        output = StateFile(name=f"{job.output_prefix}0", size=len(data), range=_ALL)
        storage.put(output.name, data)
        count = len(job.inputs)
        return CompactionResult(
            outputs=[output], entries_in=count, entries_out=count, entries_dropped=0
        )


class CompactionServiceTests:
    """Jobs from submission to their end: what backends that compact rely on.

    A subclass overrides `service_class`. A service that runs jobs in other processes overrides
    `service`, too, and has `KitCompactor` installed there.
    """

    @pytest.fixture
    def service_class(self) -> type[CompactionService]:
        """The service. Every subclass overrides this one."""
        pytest.fail(f"{type(self).__name__} has to override the fixture service_class")

    @pytest.fixture
    def service_options(self) -> Mapping[str, Any]:
        """The service's settings, by their names without the prefix."""
        return {}

    @pytest.fixture
    def storage(self) -> ObjectStorage:
        """The state directory; the operator has two files."""
        return open_storage(f"memory://kit-of-services-{next(_numbers)}")

    @pytest.fixture
    def compactor(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[KitCompactor]:
        """The only compactor that is installed in this process."""
        made = KitCompactor()

        def find(plugins: Plugins, name: str) -> KitCompactor:
            if name != made.format:
                raise UnknownPluginError(f"no compactor for the format {name!r} is installed")
            return made

        monkeypatch.setattr(Plugins, "compactor", find)
        yield made
        made.go.set()

    @pytest.fixture
    def here(self, storage: ObjectStorage) -> ObjectStorage:
        """The operator's directory, with the inputs."""
        own = storage.child(OPERATOR)
        for name in ("a", "b"):
            own.put(f"data/{name}", name.encode())
        return own

    @pytest.fixture
    def service(
        self,
        service_class: type[CompactionService],
        service_options: Mapping[str, Any],
        storage: ObjectStorage,
        here: ObjectStorage,
        compactor: KitCompactor,
    ) -> Iterator[CompactionService]:
        """The service, opened on the state directory."""
        with service_class.open(storage, service_options) as opened:
            yield opened
            compactor.go.set()

    def test_the_class_says_what_it_is(self, service_class: type[CompactionService]) -> None:
        assert issubclass(service_class, CompactionService)
        assert "contract_version" in vars(service_class), "it is not inherited"
        assert service_class.name == service_class.name.lower()
        assert not getattr(service_class, "__abstractmethods__", None)

    def test_a_job_that_is_done_has_a_durable_result(
        self, service: CompactionService, here: ObjectStorage
    ) -> None:
        """Below the job's prefix: a claim, the outputs of a run, and the result last."""
        job = new_job()
        service.submit(job)
        assert _end(service, job).phase is CompactionPhase.DONE
        (output,) = job.stored_result(here).outputs
        assert here.get(output.name) == b"ab"
        assert output.name.startswith(f"{job.output_prefix}run-"), "a run has a folder of its own"
        assert here.get(job.claim_name), "the prefix was not claimed"

    def test_the_result_comes_before_the_phase(
        self, service: CompactionService, compactor: KitCompactor, here: ObjectStorage
    ) -> None:
        compactor.go.clear()
        job = new_job()
        service.submit(job)
        assert compactor.began.wait(_PATIENCE_S)
        assert not service.poll(job.id).phase.ended
        assert job.result_name not in _names(here)
        compactor.go.set()
        assert _end(service, job).phase is CompactionPhase.DONE
        assert job.result_name in _names(here)

    def test_nothing_outside_the_prefix_is_written_or_deleted(
        self, service: CompactionService, here: ObjectStorage, storage: ObjectStorage
    ) -> None:
        before = _names(storage)
        job = new_job()
        service.submit(job)
        _end(service, job)
        service.release(job.id)
        after = _names(storage)
        assert before <= after
        new = {name.removeprefix(f"{OPERATOR}/") for name in after - before}
        assert all(name.startswith(job.output_prefix) for name in new), sorted(new)

    def test_submitting_does_not_wait(
        self, service: CompactionService, compactor: KitCompactor
    ) -> None:
        compactor.go.clear()
        with ThreadPoolExecutor(1) as pool:
            submitted = pool.submit(service.submit, new_job())
            try:
                submitted.result(_PATIENCE_S / 4)
            except TimeoutError:
                pytest.fail("submit waits for the job")
            finally:
                compactor.go.set()

    def test_a_known_id_is_not_taken_again(
        self, service: CompactionService, compactor: KitCompactor
    ) -> None:
        job = new_job()
        service.submit(job)
        assert _end(service, job).phase is CompactionPhase.DONE
        service.submit(job)
        assert service.poll(job.id).phase is CompactionPhase.DONE
        other = new_job()
        service.submit(other)
        _end(service, other)
        assert len(compactor.prefixes) == 2, "a job ran twice"

    def test_a_job_that_was_never_submitted_is_unknown(self, service: CompactionService) -> None:
        assert service.poll("never submitted").phase is CompactionPhase.UNKNOWN
        service.abort("never submitted")
        service.release("never submitted")
        service.discard("never submitted")

    def test_polling_waits_no_longer_than_it_may(
        self, service: CompactionService, compactor: KitCompactor
    ) -> None:
        compactor.go.clear()
        job = new_job()
        service.submit(job)
        with ThreadPoolExecutor(1) as pool:
            polled = pool.submit(service.poll, job.id, 0.05)
            try:
                phase = polled.result(_PATIENCE_S / 4).phase
            except TimeoutError:
                pytest.fail("poll waits beyond its time limit")
            finally:
                compactor.go.set()
        assert not phase.ended
        assert service.poll(job.id).job_id == job.id

    @pytest.mark.parametrize("fault", _FAULTS)
    def test_a_job_that_fails_says_how_until_it_is_released(
        self, service: CompactionService, compactor: KitCompactor, here: ObjectStorage, fault: str
    ) -> None:
        compactor.fault, kind = _FAULTS[fault]
        job = new_job()
        service.submit(job)
        status = _end(service, job)
        assert (status.phase, status.fault) == (CompactionPhase.FAILED, kind)
        assert str(compactor.fault) in status.message
        assert service.poll(job.id) == status, "asked again it says the same"
        assert job.result_name not in _names(here)
        compactor.fault = None
        again = new_job()
        service.submit(again)
        assert _end(service, again).phase is CompactionPhase.DONE, "the next job is not affected"

    def test_a_prefix_of_another_job_is_left_alone(
        self, service: CompactionService, here: ObjectStorage
    ) -> None:
        first = new_job()
        service.submit(first)
        _end(service, first)
        stored = here.get(first.result_name)
        forged = attrs.evolve(new_job(), output_prefix=first.output_prefix, now_us=2)
        service.submit(forged)
        assert _end(service, forged).phase is CompactionPhase.FAILED
        assert here.get(first.result_name) == stored

    def test_a_job_may_run_twice_and_its_first_result_stays(
        self, service: CompactionService, here: ObjectStorage
    ) -> None:
        first = new_job()
        service.submit(first)
        _end(service, first)
        stored = here.get(first.result_name)
        again = attrs.evolve(first, id=new_job().id, attempt=2)
        service.submit(again)
        assert _end(service, again).phase is CompactionPhase.DONE
        assert here.get(first.result_name) == stored

    def test_heartbeats_appear_while_a_job_runs(
        self, service: CompactionService, compactor: KitCompactor, here: ObjectStorage
    ) -> None:
        job = attrs.evolve(new_job(), heartbeat_s=0.0)
        service.submit(job)
        _end(service, job)
        assert job.heartbeats(here) > 0

    def test_an_aborted_job_ends_as_aborted(
        self, service: CompactionService, compactor: KitCompactor, here: ObjectStorage
    ) -> None:
        compactor.go.clear()
        job, done = new_job(), new_job()
        service.submit(job)
        assert compactor.began.wait(_PATIENCE_S)
        service.abort(job.id)
        assert _end(service, job).phase is CompactionPhase.ABORTED
        assert job.result_name not in _names(here)
        compactor.go.set()
        service.submit(done)
        _end(service, done)
        service.abort(done.id)
        assert service.poll(done.id).phase is CompactionPhase.DONE, "it had already ended"

    def test_a_released_job_is_unknown_and_its_objects_stay(
        self, service: CompactionService, here: ObjectStorage
    ) -> None:
        for forget in (service.release, service.discard):
            job = new_job()
            service.submit(job)
            _end(service, job)
            before = _names(here)
            forget(job.id)
            assert service.poll(job.id).phase is CompactionPhase.UNKNOWN
            assert _names(here) == before

    def test_a_format_without_a_compactor_is_refused_at_once(
        self, service: CompactionService
    ) -> None:
        with pytest.raises(UnknownPluginError):
            service.submit(attrs.evolve(new_job(), format="nothing-1"))

    def test_detaching_waits_for_the_jobs_of_this_process(
        self, service: CompactionService, here: ObjectStorage
    ) -> None:
        jobs = [new_job() for _ in range(3)]
        for job in jobs:
            service.submit(job)
        service.detach()
        phases = {_end(service, job).phase for job in jobs}
        assert phases == {CompactionPhase.DONE}

    def test_closing_aborts_and_may_be_repeated(
        self,
        service_class: type[CompactionService],
        service_options: Mapping[str, Any],
        storage: ObjectStorage,
        here: ObjectStorage,
        compactor: KitCompactor,
    ) -> None:
        service = service_class.open(storage, service_options)
        compactor.go.clear()
        job = new_job()
        service.submit(job)
        assert compactor.began.wait(_PATIENCE_S)
        service.close()
        service.close()
        assert job.result_name not in _names(here), "a job went on after its service was closed"

    def test_a_service_without_jobs_reports_nothing(self, service: CompactionService) -> None:
        assert service.outage() is None
        assert all(isinstance(one, (int, float)) for one in service.metrics().values())


def new_job() -> CompactionJob:
    """Return a job with a new id and prefix, for the kit's operator."""
    return CompactionJob(
        id=f"job {next(_numbers)}",
        operator=OPERATOR,
        format=KitCompactor.format,
        inputs=[StateFile(name=f"data/{name}", size=1, range=_ALL) for name in ("a", "b")],
        output_prefix=compaction_prefix(1),
        range=_ALL,
        now_us=1,
        target_bytes=1024,
    )


def _end(service: CompactionService, job: CompactionJob) -> CompactionStatus:
    """Return the status with which a job ends."""
    status = service.poll(job.id, _PATIENCE_S)
    assert status.phase.ended, f"{job.id} is {status.phase.value} after {_PATIENCE_S:g} s"
    assert status.job_id == job.id
    return status


def _names(storage: ObjectStorage) -> set[str]:
    return {info.name for info in storage.list()}
