"""The job's process is killed while a worker compacts for it; another process continues."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import timedelta
from functools import partial

import pytest
from compaction_ray_toys import PATIENCE_S, RunningGateway, ThreadPool, counted

from forebay_backend_lsm.backend import LsmBackend
from forebay_backend_lsm.compactor import LsmCompactor
from forebay_compaction_ray.client.service import RemoteCompactionService
from forebay_compaction_ray.options import RemoteOptions
from forebay_engine.versions.choosing.reader import open_version
from forebay_engine.versions.cleaning.janitor import Janitor
from forebay_engine.versions.format.epochs import list_epochs
from forebay_state_api.contract.compaction_service import CompactionPhase
from forebay_state_api.job.descriptors import ValueStateDescriptor
from forebay_state_api.storage.opening import open_storage
from forebay_testing import KeyedJob

pytestmark = pytest.mark.long

KEYS = [f"k{number}" for number in range(20)]
OPTIONS = {"max-runs": 16, "job-timeout": 600.0}
CHILD = """
import sys
from forebay_backend_lsm.backend import LsmBackend
from forebay_compaction_ray.client.service import RemoteCompactionService
from forebay_compaction_ray.options import RemoteOptions
from forebay_state_api.job.descriptors import ValueStateDescriptor
from forebay_state_api.storage.opening import open_storage
from forebay_testing import KeyedJob

storage = open_storage(sys.argv[1])
options = RemoteOptions(addresses=(sys.argv[2],), min_bytes=0)
job = KeyedJob(
    LsmBackend,
    storage,
    descriptors=[ValueStateDescriptor("v", int)],
    options={"max-runs": 16, "job-timeout": 600.0},
    compaction=RemoteCompactionService(storage, options),
)
while True:  # a micro-batch whenever the test lets it
    job.scripts([(f"k{n}", [("v.update", job.batch_id)]) for n in range(20)])
    print(job.batch_id, flush=True)
    sys.stdin.readline()
"""


class HeldCompactor(LsmCompactor):
    """Signals that it begins, and waits for permission to continue."""

    def __init__(self):
        super().__init__()
        self.began, self.go = threading.Event(), threading.Event()
        self.jobs = []

    def compact(self, job, storage, cancelled):
        self.jobs.append(job)
        self.began.set()
        while not self.go.wait(0.005):
            if cancelled():
                return None
        return super().compact(job, storage, cancelled)


@pytest.fixture
def compactor():
    return HeldCompactor()


@pytest.fixture
def gateway(tmp_path, compactor):
    pool = ThreadPool({"default": str(tmp_path)}, {LsmCompactor.format: compactor})
    made = RunningGateway(pool, storages=["default"])
    yield made
    compactor.go.set()
    made.close()


@pytest.fixture
def killed_after(tmp_path, gateway, compactor):
    """Kill a process while a worker compacts for it; yield its number of micro-batches."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path), gateway.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        try:
            batches = int(child.stdout.readline())
            while not compactor.began.wait(0.2 if batches < 15 else PATIENCE_S):
                assert batches < 15, "no batch has sent a job"
                child.stdin.write("\n")
                child.stdin.flush()
                batches = int(child.stdout.readline())
        finally:
            child.kill()
    return batches


@pytest.fixture
def job(tmp_path, gateway, killed_after):
    """The query, restarted in this process where the other one stopped."""
    storage = open_storage(str(tmp_path))
    options = RemoteOptions(addresses=(gateway.address,), min_bytes=0)
    with RemoteCompactionService(storage, options) as client:
        made = KeyedJob(
            LsmBackend,
            storage,
            descriptors=[ValueStateDescriptor("v", int)],
            options=OPTIONS,
            compaction=client,
        )
        made.batch_id = killed_after
        yield made


def batch(job):
    job.scripts([(key, [("v.update", job.batch_id)]) for key in KEYS[:3]])


def live(job):
    with open_version(job.storage, uid=job.uid) as reader:
        return {file.name for parent in reader.parents for file in parent.files}


def names_below(job, prefix):
    return [info.name for info in job.storage.list("data") if info.name.startswith(prefix)]


def until_ended(gateway, outcome):
    finished = partial(counted, gateway.core, "jobs_finished", outcome=outcome)
    while gateway.on_loop(finished) < 1:
        pass


def check_state(job, killed_after):
    last = job.batch_id - 1
    found = job.scripts([(key, [("v.value",)]) for key in KEYS])
    assert found == [[last]] * 3 + [[killed_after - 1]] * (len(KEYS) - 3)


@pytest.mark.usefixtures("patient")
def test_another_process_finds_the_job_and_installs_what_it_wrote(job, compactor, killed_after):
    given = compactor.jobs[0]
    batch(job)
    assert job.compaction.poll(given.id).phase is CompactionPhase.RUNNING
    compactor.go.set()
    assert job.compaction.poll(given.id, PATIENCE_S).phase is CompactionPhase.DONE
    batch(job)
    assert any(name.startswith(given.output_prefix) for name in live(job))
    again = [other for other in compactor.jobs[1:] if other.inputs == given.inputs]
    assert again == [], "it was done once"
    check_state(job, killed_after)


@pytest.mark.slow  # by default: test_client.py, where a job ends with its process gone
def test_a_job_that_ends_while_nobody_is_there(gateway, compactor, job, killed_after):
    given = compactor.jobs[0]
    compactor.go.set()
    until_ended(gateway, "done")
    batch(job)
    assert any(name.startswith(given.output_prefix) for name in live(job))
    check_state(job, killed_after)


def test_what_nobody_comes_back_for_is_stopped_and_cleared(gateway, compactor, job, killed_after):
    """The query continues from before the job, which only the gateway and the janitor handle."""
    given = compactor.jobs[0]
    job.batch_id = 1
    gateway.on_loop(lambda: gateway.core._abort(gateway.core._jobs[given.id], "drain"))
    until_ended(gateway, "aborted")
    job.storage.put(f"{given.output_prefix}left", b"what a worker had written until then")
    for _ in range(killed_after + 8):
        batch(job)
        for tracked in list(job.compaction._jobs):
            compactor.go.set()
            job.compaction.poll(tracked, PATIENCE_S)
    run_key = list_epochs(job.storage).newest().run_key
    janitor = Janitor(job.storage, run_key=run_key, retention=1, min_age=timedelta(0))
    for _ in range(3):
        janitor.sweep(job.batch_id)
    assert names_below(job, given.output_prefix) == []
    found = job.scripts([(key, [("v.value",)]) for key in KEYS])
    assert found == [[job.batch_id - 2]] * 3 + [[0]] * (len(KEYS) - 3)
