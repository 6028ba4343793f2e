"""A query of real parts, whose troubles the test injects.

The engine, the lsm backend, the version protocol, gRPC, a gateway and workers are real; the test
drives micro-batches, the clock of storage, and the troubles.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from datetime import timedelta

import pytest
from compaction_ray_toys import PATIENCE_S, RunningGateway, ThreadPool, ThreadWorker, happened

from forebay_backend_lsm.backend import LsmBackend
from forebay_backend_lsm.compactor import LsmCompactor
from forebay_compaction_ray.client.lifecycle import State
from forebay_compaction_ray.client.service import RemoteCompactionService
from forebay_compaction_ray.gateway.limits import GatewayLimits
from forebay_compaction_ray.gateway.worker_handle import WorkerLostError
from forebay_compaction_ray.options import RemoteOptions
from forebay_compaction_ray.protocol import pack
from forebay_engine.versions.choosing.reader import open_version
from forebay_engine.versions.cleaning.janitor import Janitor
from forebay_engine.versions.format.epochs import list_epochs
from forebay_engine.versions.format.manifest import is_named
from forebay_state_api.contract.compaction_service import CompactionPhase
from forebay_state_api.contract.file_names import data_version
from forebay_state_api.errors import StorageError
from forebay_state_api.job.descriptors import ListStateDescriptor, ValueStateDescriptor
from forebay_state_api.storage.opening import open_storage
from forebay_testing import ClockedStorage, KeyedJob, ManualClock

VALUE = ValueStateDescriptor("v", int)
LIST = ListStateDescriptor("l", int)
KEYS = [f"k{number}" for number in range(8)]
HOUR = timedelta(hours=1)
RETENTION = 2
BATCHES = 20


class TroubledCompactor(LsmCompactor):
    """Fails transiently a given number of times, and waits while it is held."""

    def __init__(self):
        super().__init__()
        self.failures = 0
        self.go = threading.Event()
        self.go.set()

    def compact(self, job, storage, cancelled):
        while not self.go.wait(0.005):
            if cancelled():
                return None
        if self.failures:
            self.failures -= 1
            raise StorageError("throttled", transient=True)
        return super().compact(job, storage, cancelled)


class TroubledWorker(ThreadWorker):
    """Is declared dead a given number of times; the jobs it had then are kept for later.

    Each item of `damages` alters one of its results.
    """

    async def run(self, given):
        if self._body.deaths:
            self._body.deaths -= 1
            self._body.zombies.append(given)
            raise WorkerLostError("its node does not answer")
        outcome = await super().run(given)
        if self._body.damages and outcome.phase is CompactionPhase.DONE:
            self._damage(given, self._body.damages.pop())
        return outcome

    def _damage(self, given, damage):
        here = self._body.root.child(given.job.operator)
        data = here.get(given.job.result_name)
        here.delete([given.job.result_name])
        here.put(given.job.result_name, damage(data))


class TroubledPool(ThreadPool):
    worker_class = TroubledWorker

    def start(self):
        """Start a worker, which has the troubles of the last one."""
        troubles = vars(self.bodies[-1]) if self.bodies else {}
        worker = super().start()
        worker._body.deaths = troubles.get("deaths", 0)
        worker._body.zombies = troubles.get("zombies", [])
        worker._body.damages = troubles.get("damages", [])
        worker._body.root = self._storages["default"]
        return worker


class Query:
    """One query, its service, and its expected state."""

    def __init__(self, **options):
        self.clock = ManualClock()
        self.root = ClockedStorage(open_storage(f"memory://{uuid.uuid4()}"), self.clock)
        self.compactor = TroubledCompactor()
        self.pool = TroubledPool({"default": self.root}, {LsmCompactor.format: self.compactor})
        self.gateway = self.serve()
        self.model = {key: (None, []) for key in KEYS}
        self.ended = []
        self.client = None
        self.options = options
        self.stack = contextlib.ExitStack()
        self.job = KeyedJob(
            LsmBackend,
            self.root,
            descriptors=[VALUE, LIST],
            options={"max-runs": 16, "job-timeout": 600.0},
            clock=self.clock,
        )
        self.new_process()
        self.storage = self.job.storage

    def serve(self, port=0, security=None, **limits):
        given = GatewayLimits(ping_every_s=0.05, **limits)
        return RunningGateway(
            self.pool, storages=["default"], limits=given, security=security, port=port
        )

    @property
    def body(self):
        return self.pool.bodies[-1]

    def new_process(self, address=None, **options):
        """End the process, as Spark may do, and continue in another one."""
        self.end_process()
        given = {"min_bytes": 0, "queue_timeout_s": 0.5, **self.options, **options}
        of_client = {k: given.pop(k) for k in ("clock", "answer_s") if k in given}
        given["addresses"] = (address or self.gateway.address,)
        self.client = RemoteCompactionService(
            self.root,
            RemoteOptions(**given),
            **of_client,
        )
        self.job.compaction = self.client

    def end_process(self):
        if self.client is not None:
            self.client.close()
            self.ended.append(self.client)
            self.client = None

    def new_gateway(self, **given):
        port = int(self.gateway.address.rpartition(":")[2])
        self.gateway.close()
        self.gateway = self.serve(port, **given)

    def batch(self, *, minutes=1, wait=True):
        """Run a micro-batch, then wait for the running compactions to end."""
        self.clock.advance(timedelta(minutes=minutes))
        number = self.job.batch_id
        calls, after = [], dict(self.model)
        for key in KEYS[number % 3 :: 2]:
            _, elements = self.model[key]
            if number % 5 == 4:
                calls.append((key, [("v.clear",), ("l.clear",)]))
                after[key] = (None, [])
            else:
                calls.append((key, [("v.update", number), ("l.add", number)]))
                after[key] = (number, [*elements, number])
        self.job.scripts(calls)
        self.model = after
        if wait:
            self.settle()

    def settle(self):
        for job_id in list(self.client._jobs):
            self.client.poll(job_id, PATIENCE_S)

    def until_taken(self):
        """Wait until each job is at a gateway or was refused by all."""
        for tracked in list(self.client._jobs.values()):
            tracked.wait(lambda state: state is not State.OFFERED, PATIENCE_S)

    def check(self):
        """Check that the state is as written, and that no object exists that no version needs."""
        found = self.job.scripts([(key, [("v.value",), ("l.get",)]) for key in KEYS])
        assert found == [[value, elements] for value, elements in self.model.values()]
        self.settle()
        needed, swept = set(), None
        for _ in range(3):
            self.clock.advance(3 * HOUR)
            swept = self.sweep()
        for version in range(swept.base, self.job.batch_id + 1):
            with open_version(self.storage, uid=self.job.uid, version=version) as reader:
                for manifest in reader.manifests:
                    needed |= manifest.names
        unneeded = [name for name in self.names() if not is_named(name, needed)]
        assert all((data_version(name) or 0) >= swept.base for name in unneeded)

    def sweep(self):
        run_key = list_epochs(self.storage).newest().run_key
        janitor = Janitor(self.storage, run_key=run_key, retention=RETENTION, min_age=HOUR)
        return janitor.sweep(self.job.batch_id)

    def names(self):
        return {info.name for info in self.storage.list("data")}

    def live(self):
        with open_version(self.storage, uid=self.job.uid) as reader:
            return {file.name for parent in reader.parents for file in parent.files}

    def count(self, name):
        clients = self.ended if self.client is None else [*self.ended, self.client]
        return sum(happened(client, name) for client in clients)

    def close(self):
        self.compactor.go.set()
        self.end_process()
        self.gateway.close()
        self.stack.close()


def run(query):
    for _ in range(BATCHES):
        query.batch()


def run_until(query, has_happened):
    """Run until something has happened, and two more batches: they install and read its result."""
    for _ in range(BATCHES):
        if has_happened():
            break
        query.batch()
    query.batch()
    query.batch()


def speak(query, side, **versions):
    """Make one side appear to the other as another release."""
    patch = query.stack.enter_context(pytest.MonkeyPatch.context())
    patch.setattr(side, "pack", lambda message: pack({**message, **versions}))
